package io.txmq.spark;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3 with commits that overwrite nothing: each is put if absent (If-None-Match).
 *
 * <p>Delta's own store looks whether a commit file is there and then writes it. A commit of another
 * process that comes in between is overwritten, without an error.
 */
public final class S3ConditionalLogStore extends S3SingleDriverLogStore {
  /** Hadoop's S3A knows it from 3.4.2 on; an older one refuses the write. */
  private static final String PUT_IF_ABSENT = "fs.option.create.conditional.overwrite";

  public S3ConditionalLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (overwrite) {
      super.write(path, actions, true, configuration);
      return;
    }
    FileSystem files = path.getFileSystem(configuration);
    byte[] content = content(actions);
    try {
      put(files, path, content);
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException error) {
      throw alreadyThere(path, error);
    } catch (IOException error) {
      // The put may have landed and its answer be lost; then it was tried again and refused.
      if (!isThere(files, path, content)) {
        throw files.exists(path) ? alreadyThere(path, error) : error;
      }
    }
  }

  private static byte[] content(Iterator<String> actions) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      bytes.write(actions.next().getBytes(StandardCharsets.UTF_8));
      bytes.write('\n');
    }
    return bytes.toByteArray();
  }

  private static void put(FileSystem files, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
    builder.overwrite(false);
    builder.must(PUT_IF_ABSENT, true);
    try (FSDataOutputStream stream = builder.build()) {
      stream.write(content);
    }
  }

  private static boolean isThere(FileSystem files, Path path, byte[] content) throws IOException {
    if (!files.exists(path) || files.getFileStatus(path).getLen() != content.length) {
      return false;
    }
    byte[] stored = new byte[content.length];
    try (FSDataInputStream stream = files.open(path)) {
      stream.readFully(stored);
    }
    return Arrays.equals(stored, content);
  }

  private static FileAlreadyExistsException alreadyThere(Path path, IOException cause) {
    FileAlreadyExistsException refused = new FileAlreadyExistsException(path.toString());
    refused.initCause(cause);
    return refused;
  }
}

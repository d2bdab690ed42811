// The theme, live updates, and buttons that copy. Without this file the pages still show everything.
"use strict";
const root = document.documentElement;
const EACH_MS = 15000;

function kept(name) { try { return localStorage.getItem(name); } catch { return null; } }
function keep(name, value) { try { localStorage.setItem(name, value); } catch { /* for this page only */ } }

const theme = kept("txmq-theme");
if (theme === "dark" || theme === "light") root.dataset.theme = theme;

function isDark() {
  return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

function named(act) { return document.querySelector(`[data-act="${act}"]`); }

function label() { named("theme").textContent = isDark() ? "Light theme" : "Dark theme"; }

function say(text) { document.getElementById("news").textContent = text; }

// Takes each part with data-live from a fresh page; a part that has the focus is left alone.
async function update() {
  if (document.hidden || named("live").getAttribute("aria-pressed") !== "true") return;
  // A search or a message has none: each answer would be read again for nothing.
  if (document.querySelector("main [data-live]") === null) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || part.contains(document.activeElement)) continue;
      if (other.textContent !== part.textContent || other.querySelector("svg")) swap(part, other);
    }
  } catch { say("The dashboard does not answer; the figures are old."); }
}

function swap(part, other) {
  const left = part.querySelector(".scroll")?.scrollLeft || 0;
  part.replaceWith(document.adoptNode(other));
  const scroll = other.querySelector(".scroll");
  if (scroll) scroll.scrollLeft = left;
  reveal(other);
}

function reveal(part) { for (const button of part.querySelectorAll("button[hidden]")) button.hidden = false; }

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.firstChild.textContent = "Copied";
    say("Copied.");
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.firstChild.textContent = "Selected";
  }
  setTimeout(() => { button.firstChild.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  if (button.dataset.act === "copy") copy(button);
  if (button.dataset.act === "theme") {
    root.dataset.theme = isDark() ? "light" : "dark";
    keep("txmq-theme", root.dataset.theme);
    label();
  }
  if (button.dataset.act === "live") {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    keep("txmq-live", String(isOn));
    if (isOn) update();
  }
});

document.addEventListener("DOMContentLoaded", () => {
  reveal(document);
  label();
  if (kept("txmq-live") === "false") named("live").setAttribute("aria-pressed", "false");
  setInterval(update, EACH_MS);
});

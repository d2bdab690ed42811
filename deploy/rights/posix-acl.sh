# Grants by access control lists; made by `python -m tests.kit.grants`.
# Run by the owner of the store; take the part of each role that you have.
set -eu
STORE=${1:?the folder of the store}

# producer
mkdir -p "$STORE/renewals"
setfacl -m g:txmq-producer:x "$STORE"
setfacl -R -m g:txmq-producer:rX,d:g:txmq-producer:rX "$STORE/half" "$STORE/op" "$STORE/settled" "$STORE/topics" "$STORE/state"
setfacl -R -m g:txmq-producer:rwX,d:g:txmq-producer:rwX "$STORE/half" "$STORE/op" "$STORE/renewals"

# producer that answers checks
mkdir -p "$STORE/state/remote_orders"
mkdir -p "$STORE/clock"
mkdir -p "$STORE/renewals"
setfacl -m g:txmq-producer-that-answers-checks:x "$STORE" "$STORE/state"
setfacl -R -m g:txmq-producer-that-answers-checks:rX,d:g:txmq-producer-that-answers-checks:rX "$STORE/half" "$STORE/op" "$STORE/settled" "$STORE/topics" "$STORE/state" "$STORE/clock"
setfacl -R -m g:txmq-producer-that-answers-checks:rwX,d:g:txmq-producer-that-answers-checks:rwX "$STORE/half" "$STORE/op" "$STORE/state/remote_orders" "$STORE/clock" "$STORE/renewals"

# broker
mkdir -p "$STORE/clock"
mkdir -p "$STORE/renewals"
setfacl -m g:txmq-broker:x "$STORE"
setfacl -R -m g:txmq-broker:rX,d:g:txmq-broker:rX "$STORE"
setfacl -R -m g:txmq-broker:rwX,d:g:txmq-broker:rwX "$STORE/half" "$STORE/op" "$STORE/settled" "$STORE/topics" "$STORE/state" "$STORE/clock" "$STORE/renewals"

# consumer
mkdir -p "$STORE/state/group_billing"
setfacl -m g:txmq-consumer:x "$STORE" "$STORE/state"
setfacl -R -m g:txmq-consumer:rX,d:g:txmq-consumer:rX "$STORE/half" "$STORE/op" "$STORE/settled" "$STORE/topics" "$STORE/state"
setfacl -R -m g:txmq-consumer:rwX,d:g:txmq-consumer:rwX "$STORE/half" "$STORE/op" "$STORE/state/group_billing"

# operator
setfacl -m g:txmq-operator:x "$STORE"
setfacl -R -m g:txmq-operator:rX,d:g:txmq-operator:rX "$STORE"
setfacl -R -m g:txmq-operator:rwX,d:g:txmq-operator:rwX "$STORE/op"

# reader
setfacl -m g:txmq-reader:x "$STORE" "$STORE/topics"
setfacl -R -m g:txmq-reader:rX,d:g:txmq-reader:rX "$STORE/topics/order-paid"

# reader of SQL
setfacl -m g:txmq-reader-of-SQL:x "$STORE"
setfacl -R -m g:txmq-reader-of-SQL:rX,d:g:txmq-reader-of-SQL:rX "$STORE/half" "$STORE/op" "$STORE/settled" "$STORE/topics" "$STORE/state"

# status
setfacl -m g:txmq-status:x "$STORE"
setfacl -R -m g:txmq-status:rX,d:g:txmq-status:rX "$STORE"

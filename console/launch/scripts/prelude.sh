mkdir -p "$logs"
workers=() last=() measuring=
# Input of all processes: it ends with this script, however that ends, and then they end too.
hold=$(mktemp -d) && mkfifo "$hold/alive"
exec {alive}<>"$hold/alive"
exec {life}<"$hold/alive"
rm -r "$hold"

# keep NAME COMMAND...: run a process in the background, and start it again when it dies, until the script ends.
keep() {
    local name=$1
    shift
    (
        exec {alive}>&-
        exec setsid "$python" -m "$keeper" "$name" "$logs/$name.log" "$drain_s" "$@" <&"$life"
    ) &
}

# measure COMMAND...: run a command to its end. A signal to this script ends it too.
measure() {
    (
        exec {alive}>&-
        exec setsid "$python" -I -S "$subreaper" "$drain_s" "$@" <&"$life"
    ) &
    measuring=$!
    await "$measuring"
    wait "$measuring"
    measuring=
}

# end PID...: end processes, and wait for them.
end() {
    for each in "$@"; do kill -TERM "$each" 2>/dev/null || true; done
    await "$@"
}

# await PID...: wait for processes. A trap runs between two looks; within `wait` bash may lose a signal.
await() {
    for each in "$@"; do
        while kill -0 "$each" 2>/dev/null; do sleep 0.5; done
    done
}

stop() {
    trap '' TERM INT USR1
    end ${measuring:+"$measuring"} "${workers[@]}"
    end "${last[@]}" # the recorder: it records what the others have sent
}

trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 1' USR1
trap stop EXIT

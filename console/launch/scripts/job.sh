set -euo pipefail

# repeat COMMAND...: start a process again when it dies; not where it has ended, or where the user must correct something.
repeat() {
    while true; do
        code=0
        "$@" || code=$?
        case " 0 $final " in *" $code "*) exit "$code" ;; esac
        echo "exit code $code, it starts again" >&2
        sleep "$restart_s"
    done
}

# The control job makes topics and tables.
for ((waited = 0; ; waited += 5)); do
    [ ! -e "$ready" ] || break
    if ((waited >= 900)); then echo "the control job made no topics within 900 s" >&2; exit 3; fi
    sleep 5
done

#!/usr/bin/env bash
# Everything that needs a CUDA device, in under nine minutes: the marked tests, then correctness of
# every chain in every layout, the race against eager, torch.compile and a device copy, what layouts
# cost, what a call costs on the host, and three whole models.  Each part is a process of its own
# with a time of its own, and runs whatever became of the others.
#
#   tests/gpu/run.sh [FOLDER]     figures as JSON go to FOLDER (default: build)
#
# Exit status: 0 all passed, 1 a part failed, 3 no CUDA device (nothing could be tried).
# PYTHON names the interpreter (default: .venv/bin/python where it exists, else python3).
set -u
cd "$(dirname "$0")/../.." || exit 1
if [ -z "${PYTHON:-}" ]; then
    if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi
folder="${1:-build}"
mkdir -p "$folder" || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" KINETO_LOG_LEVEL=6 HF_HUB_OFFLINE=1

status=0
part() { # part NAME SECONDS COMMAND...
    local name="$1" seconds="$2" code
    shift 2
    echo "== $name"
    timeout --kill-after=5 "$seconds" "$@"
    code=$?
    case $code in
        0) echo "== $name: passed" ;;
        124 | 137) echo "== $name: stopped after $seconds s" ;;
        *) echo "== $name: failed (exit status $code)" ;;
    esac
    [ $code -eq 0 ] || status=1
}

figures() { # figures NAME SECONDS: rows are kept as they come; 15 s less, to end by itself
    rm -f "$folder/gpu-$1.json"
    part "$1" "$2" "$PYTHON" tests/gpu/parts.py "$1" "$folder/gpu-$1.json" --seconds $(($2 - 15))
}

"$PYTHON" -c 'import torch' || { echo "$PYTHON cannot import torch: make test sets up .venv" >&2; exit 1; }
if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "no CUDA device: torch $("$PYTHON" -c 'import torch; print(torch.__version__)') sees none." \
         "The tests below are skipped; nothing was proven on a device."
    "$PYTHON" -m pytest -q -m gpu tests/gpu -p no:cacheprovider
    exit 3
fi

part "what this machine can do" 25 "$PYTHON" -m fusion_advisor doctor
figures host 35
figures correct 100
figures race 150
figures layouts 40
figures models 70
part "tests on the device" 110 "$PYTHON" -m pytest -q -m gpu tests/gpu
"$PYTHON" tests/gpu/summary.py "$folder" || status=1
exit $status

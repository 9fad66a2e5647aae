#!/usr/bin/env bash
# Everything that needs a CUDA device: the marked tests, then the race against eager, torch.compile
# and a device copy.  Each part runs whatever became of the others.
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
part() { # part NAME COMMAND...
    local name="$1" code
    shift
    echo "== $name"
    "$@"
    code=$?
    echo "== $name: $([ $code -eq 0 ] && echo passed || echo "failed (exit status $code)")"
    [ $code -eq 0 ] || status=1
}

"$PYTHON" -c 'import torch' || { echo "$PYTHON cannot import torch: make test sets up .venv" >&2; exit 1; }
if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "no CUDA device: torch $("$PYTHON" -c 'import torch; print(torch.__version__)') sees none." \
         "The tests below are skipped; nothing was proven on a device."
    "$PYTHON" -m pytest -q -m gpu tests/gpu -p no:cacheprovider
    "$PYTHON" tests/gpu/race.py
    exit 3
fi

part "what this machine can do" "$PYTHON" -m fusion_advisor doctor
part "tests on the device" "$PYTHON" -m pytest -q -m gpu tests/gpu
part "race" "$PYTHON" tests/gpu/race.py "$folder/gpu-race.json"
exit $status

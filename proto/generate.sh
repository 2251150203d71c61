#!/usr/bin/env bash
# Regenerates the protobuf modules beside the .proto files. `--check` fails when the committed ones are stale.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"${PYTHON:-python3}" -m grpc_tools.protoc -Itwostep/proto=proto --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/*.proto
if [[ ${1:-} == --check ]]; then
  for file in "$out"/twostep/proto/*; do
    cmp -s "$file" "proto/$(basename "$file")" || { echo "proto/$(basename "$file") is stale: run make proto" >&2; exit 1; }
  done
else
  cp "$out"/twostep/proto/* proto/
fi

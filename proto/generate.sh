#!/bin/sh
# Regenerate fkd_common/pb from proto/: ./proto/generate.sh [OUT]. A test compares the result with what is checked in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-"$here/../fkd_common/pb"}
mkdir -p "$out"
"${PYTHON:-python3}" -m grpc_tools.protoc -I "$here" --python_out="$out" --pyi_out="$out" \
  fkd/v1/types.proto fkd/v1/coordinator.proto fkd/v1/admin.proto fkd/v1/enrolment.proto
# Generated modules import each other as fkd.v1...; ours live under fkd_common.pb.
mv "$out"/fkd/v1/*_pb2.py "$out"/fkd/v1/*_pb2.pyi "$out"/
rm -r "$out/fkd"
sed -i 's/from fkd\.v1 import/from fkd_common.pb import/' "$out"/*_pb2.py "$out"/*_pb2.pyi

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job of 08_torch_digits that is killed and started again ends as one that is not: 08_torch_digits.sh TUTTI PROGRAM
set -euo pipefail
tutti=$1 program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

whole=$("$tutti" run -n 2 "$program")
"$tutti" run -n 2 "$program" --checkpoint "$folder" > "$folder/killed.txt" &
until [[ -e $folder/digits.pt ]] || ! kill -0 $! 2> /dev/null; do sleep 0.05; done
kill $! || true
wait $! || true
resumed=$("$tutti" run -n 2 "$program" --checkpoint "$folder")
echo "$whole"
echo "$resumed"
grep -q "going on from epoch" <<< "$resumed"
last() { grep -o "epoch 30  loss [0-9.]*  test accuracy *[0-9.]*" <<< "$1"; }
[[ $(last "$whole") == "$(last "$resumed")" ]]

# Jobs of an ended run can be submitted again.
set -euo pipefail
cd "$folder"
rm -f ready
control=$(sbatch --parsable control.sbatch)
control=${control%%;*}
echo "control $control"
for job in $jobs; do
    echo "$job $(sbatch --parsable --dependency="after:$control" "$job.sbatch")"
done

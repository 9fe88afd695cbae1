# From here on the script is the same for each machine. It runs as root, as a job of
# SkyPilot, and goes on for as long as the server speaks to the machine: SkyPilot deletes
# a machine that has had no job for a while, by itself and with its disk.
heartbeat=/run/gpuyard-heartbeat
boot=/var/tmp/gpuyard-boot.sh
if [ ! -e "$heartbeat" ]; then
    umask 077
    printf '%s' "$boot_script" | base64 -d >"$boot" || exit 1
    sh "$boot" || exit 1
fi
# The machine would only stop, and its disk would go on to cost.
changes=/etc/systemd/system/gpuyard-silence.service.d
mkdir -p "$changes"
{
    echo '[Service]'
    echo 'ExecStart='
    echo "ExecStart=/usr/local/sbin/gpuyard-end-when-silent $power_off_s $heartbeat"
} >"$changes/after-skypilot.conf"
systemctl daemon-reload
while sleep "$look_s"; do
    heard=
    read -r heard _ <"$heartbeat"
    read -r now _ </proc/uptime
    heard=${heard%%.*}
    silent=$((${now%%.*} - ${heard:-0}))
    if [ "$silent" -gt "$silence_s" ]; then
        echo "gpuyard's server has been silent for $silent s: SkyPilot may delete this machine"
        exit 0
    fi
done

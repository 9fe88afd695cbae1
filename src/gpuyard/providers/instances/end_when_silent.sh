#!/bin/sh
# Ends this rented machine when gpuyard's server has been silent for too long.
#
#     gpuyard-end-when-silent SECONDS FILE
#
# FILE holds the uptime, in seconds, at which the server last said something. Without a
# readable one that counts from the boot. No clock is read that somebody could set.
uptime_s() {
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

silent_for_s() {
    heard=0
    [ -r "$2" ] && read -r heard <"$2"
    heard=${heard%%.*}
    case $heard in
    '' | *[!0-9]* | ????????????*) heard=0 ;;
    esac
    now=$(uptime_s)
    # Of another boot.
    [ "$heard" -le "$now" ] || heard=0
    echo $((now - heard))
}

silent=$(silent_for_s "$@")
[ "$silent" -gt "$1" ] || exit 0
message="gpuyard: the server has been silent for $silent s: this machine ends itself"
echo "$message"
{ echo "$message" >>/dev/console; } 2>/dev/null
poweroff
# What does not end when it is asked must not keep the machine.
sleep 120
poweroff -f -f

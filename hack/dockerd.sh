#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Makes sure that a Docker engine answers: installs docker.io by apt where there
# is none, starts dockerd where nothing answers, and waits until it does. Safe to
# run again and again. Needs root or sudo for what it changes. DOCKERD_WAIT (60)
# is how many seconds the engine gets to come up; it is started once more if it does not.
#
#     hack/dockerd.sh [stop]
#
# "stop" stops the engine, for callers that had it started.
set -euo pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

readonly wait_seconds="${DOCKERD_WAIT:-60}"
readonly log=/var/log/dockerd.log
readonly pidfile=/var/run/docker.pid

say() { echo "dockerd.sh: $*"; }

# answers reports whether an engine answers this user, or root ("answers as_root").
answers() { command -v docker >/dev/null && "$@" timeout 10 docker info >/dev/null 2>&1; }

report() {
	say "$1: Docker $(timeout 10 docker version --format '{{.Server.Version}} (API {{.Server.APIVersion}})' 2>/dev/null || echo "engine") at ${DOCKER_HOST:-unix:///var/run/docker.sock}"
}

have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

# Newer releases ship the docker command apart from the engine.
install() {
	have dockerd || apt_install docker.io iptables ca-certificates
	have docker || apt_install docker-cli
}

# starting reports whether a dockerd runs already and only needs time.
starting() { [ -r "$pidfile" ] && [ -d "/proc/$(cat "$pidfile")" ]; }

start() {
	if [ -d /run/systemd/system ]; then
		say "starting the docker service"
		as_root timeout "$wait_seconds" systemctl start docker || say "systemctl start docker failed: see journalctl -u docker"
	else
		say "starting dockerd, its log is $log"
		as_root sh -c "PATH=\"\$PATH:/usr/sbin:/sbin\" setsid nohup dockerd >>$log 2>&1 </dev/null &"
	fi
}

# wait_for_engine reports whether an engine answers in time.
wait_for_engine() {
	local deadline=$((SECONDS + wait_seconds))
	until answers as_root; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.5
	done
}

# start_engine starts an engine, and once more if it does not answer. It leaves alone one that
# others have started.
start_engine() {
	if starting; then
		say "a dockerd runs already (process $(cat "$pidfile")), waiting for it"
		wait_for_engine || die "dockerd (process $(cat "$pidfile" 2>/dev/null || echo gone)) did not answer within $wait_seconds s: end it, or see its log"
		return
	fi
	start
	wait_for_engine && return
	say "no engine answered within $wait_seconds s, starting it once more: $(last_words)"
	stop
	start
	wait_for_engine || die "no engine answered within $wait_seconds s, twice: $(last_words)"
}

last_words() { as_root tail -n 1 "$log" 2>/dev/null || echo 'see journalctl -u docker'; }

# stop waits until the engine has ended, and removes what it does not.
stop() {
	if [ -d /run/systemd/system ]; then
		say "stopping the docker service"
		as_root timeout 120 systemctl stop docker.socket docker || die "the docker service did not stop: see journalctl -u docker"
	elif starting; then
		say "stopping dockerd"
		pid="$(cat "$pidfile")"
		as_root kill "$pid"
		timeout 60 tail --pid="$pid" --follow /dev/null || die "dockerd (process $pid) did not end"
		as_root rm -f "$log"
	fi
}

if [ "${1:-}" = stop ]; then
	stop
	exit 0
fi
if answers env; then
	report "an engine answers already"
	exit 0
fi
[ -z "${DOCKER_HOST:-}" ] || die "nothing answers at DOCKER_HOST=$DOCKER_HOST: start that engine or unset DOCKER_HOST"
need_root "no engine answers this user, and to start one"

install
answers as_root || start_engine
answers env || die "the engine answers root only: run as root, or join its group with: sudo usermod -aG docker $(id -un)"
report "the engine is up"

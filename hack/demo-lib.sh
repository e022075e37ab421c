#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the demos share: reporting their steps, building, starting and stopping
# Drover, and watching VMs. They source it and define cleanup.

# shellcheck disable=SC2034 # those who source it use them
readonly usage_period=5 # seconds; the default of 30 is too long for a demo

vm=test-vm # the one that is shown
work=""    # folder of this run
data=""    # the data dir in it
up_pid=""
watch_pid=""
out=""
begun=0

bold="" dim="" plain=""
if [[ -t 1 ]]; then
	bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'
fi

# create_work_dir creates the folder of this run, and makes sure that cleanup is called.
create_work_dir() {
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	command -v go >/dev/null || fail "there is no Go on this machine: https://go.dev/doc/install"
	work="$(mktemp -d "${TMPDIR:-/tmp}/drover-demo-XXXXXX")"
	data="${work}/data"
}

# Output.

print_step() {
	echo
	echo "${bold}== $1${plain}"
	shift
	[[ $# -eq 0 ]] || printf '   %s\n' "$@"
}

print_note() { echo "   $*"; }

fail() {
	echo "${bold}demo: $*${plain}" >&2
	[[ ! -s "${work}/up.log" ]] || tail -n 20 "${work}/up.log" | sed 's/^/   drover up: /' >&2
	[[ ! -s "${data}/logs/drover.log" ]] || tail -n 20 "${data}/logs/drover.log" | sed 's/^/   its log:   /' >&2
	exit 1
}

indent() { sed -u 's/^/   /'; }

# print_command writes a command as it would be typed.
print_command() {
	local word line=""
	for word in "$@"; do
		[[ "${word}" =~ ^([A-Za-z0-9_./:=,@%+-]+|&)$ ]] || word="'${word}'"
		line+=" ${word}"
	done
	echo "   ${dim}\$${plain}${bold}${line}${plain}"
}

# run shows a command and its output, and stores the output in $out.
run() {
	print_command "$@"
	local status=0
	out="$("$@" 2>&1)" || status=$?
	[[ -z "${out}" ]] || indent <<<"${out}"
	[[ "${status}" -eq 0 ]] || fail "that command ended with exit status ${status}"
}

# run_live runs a command that takes long, and shows its output as it comes.
run_live() {
	print_command "$@"
	"$@" 2>&1 | indent || fail "that command failed"
}

kubectl() { bin/drover kubectl "$@"; }

# until_within SECONDS COMMAND... waits for the command to succeed.
until_within() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		[[ "${SECONDS}" -lt "${deadline}" ]] || return 1
		sleep 0.2
	done
}

build_drover() {
	print_step "Build Drover" "The first time, Go compiles a whole Kubernetes API server: that takes minutes."
	run_live make --no-print-directory build
	begun="${SECONDS}"
}

# start_drover starts it with further flags.
start_drover() {
	print_step "Start Drover" "etcd, kube-apiserver and the controller in one process, on a temporary data dir."
	local flags=(--data-dir "${data}" --port 0 --usage-period "${usage_period}s" "$@")
	print_command bin/drover up "${flags[@]}"
	# A session of its own: Ctrl-C is for this script, which stops it in order.
	setsid bin/drover up "${flags[@]}" >"${work}/up.log" 2>&1 </dev/null &
	up_pid=$!
	until_within 180 up_is_ready || fail "drover up was not ready within 180 s"
	indent <"${work}/up.log"
	export KUBECONFIG="${data}/kubeconfig"
	echo
	print_command export "KUBECONFIG=${KUBECONFIG}"
}

up_is_ready() {
	kill -0 "${up_pid}" 2>/dev/null || fail "drover up ended"
	[[ -e "${data}/run/ready" ]]
}

# start_watch shows the VMs from now on, a row whenever one changes.
start_watch() {
	print_command bin/drover kubectl get vms --watch "&"
	: >"${work}/watch"
	: >"${work}/requests"
	bin/drover kubectl -v=6 get vms --watch > >(tee "${work}/watch" | indent) 2>"${work}/requests" &
	watch_pid=$!
	until_within 20 grep -q 'watch=true' "${work}/requests" || fail "kubectl get vms --watch did not begin"
}

stop_watch() {
	[[ -n "${watch_pid}" ]] || return 0
	kill "${watch_pid}" 2>/dev/null || true
	wait "${watch_pid}" 2>/dev/null || true
	watch_pid=""
}

watched() { grep -q "$1" "${work}/watch"; }

field() { kubectl get vm "${vm}" --output "jsonpath={$1}"; }

has_usage() { [[ -n "$(field .status.server.usage.cpu)" ]]; }

stop_drover() {
	print_step "Stop Drover" "Servers would continue to run, and the next start would take them over."
	local lines status=0
	lines="$(wc -l <"${work}/up.log")"
	print_command kill "${up_pid}"
	kill "${up_pid}"
	wait "${up_pid}" || status=$?
	up_pid=""
	tail -n "+$((lines + 1))" "${work}/up.log" | sed '/^$/d' | indent
	[[ "${status}" -eq 0 ]] || fail "drover up ended with exit status ${status}"
}

stop_up() {
	[[ -n "${up_pid}" ]] || return 0
	kill "${up_pid}" 2>/dev/null
	until_within 20 up_has_ended || kill -KILL "${up_pid}" 2>/dev/null
	wait "${up_pid}" 2>/dev/null
}

up_has_ended() { ! kill -0 "${up_pid}" 2>/dev/null; }

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/driver"
)

// serveScript is a service of an init, and trapScript a command that ends with 5 at SIGTERM.
const (
	serveScript = "#!/bin/sh\necho web serves\nexec sleep 1000000\n"
	trapScript  = `trap 'echo ends; exit 5' TERM; echo serves; touch /run/ready; while :; do sleep 0.2; done`
)

// leavesNoZombie is a command whose child outlives it. Process 1 has to wait for the child.
var leavesNoZombie = imageCommand{script: "sh -c 'sleep 0.1 &'; sleep 1; while ps -eo stat | grep -q ^Z; do sleep 0.1; done"}

// isFirst is a command that prints the name of process 1.
func isFirst(name string) imageCommand {
	return imageCommand{script: "cat /proc/1/comm", prints: name + "\n"}
}

// getPage is a command that prints a page of the server itself.
func getPage(address string) string {
	return `python3 -c 'import urllib.request; print(urllib.request.urlopen("http://localhost` + address + `").read().decode(), end="")'`
}

// images are of Debian's packages. None is the image that the program's authors publish, or has its scripts: s6 is not
// s6-overlay, and PostgreSQL not postgres of Docker Hub.
//
// An init that ends by reboot(2) does so only in a machine: a container lacks the right to, and stays until it is killed.
var images = map[string]imageCase{
	// A script becomes process 1, as in images of s6-overlay.
	"s6": {
		root: "inits",
		files: map[string]string{
			"init":                     "#!/bin/sh -e\ncp -r /etc/s6 /run/service\nexec s6-svscan /run/service\n",
			"etc/s6/.s6-svscan/finish": "#!/bin/sh\necho finishes\nexit 4\n",
			"etc/s6/web/run":           "#!/bin/sh\ntest -e /run/begun || { touch /run/begun; echo fails once; exit 1; }\necho web serves\nexec sleep 1000000\n",
		},
		config: v1.Config{Entrypoint: []string{"/init"}},
		ready:  "s6-svstat -o up /run/service/web | grep true",
		commands: []imageCommand{
			isFirst("s6-svscan"), leavesNoZombie,
			{script: "s6-svc -d -wD /run/service/web; s6-svstat -o up,signal /run/service/web", prints: "false SIGTERM\n"},
			{script: "s6-svc -u -wu /run/service/web; s6-svstat -o pid /run/service/web >/run/killed; kill -9 -1"},
			{script: `until s6-svstat -o up,pid /run/service/web 2>&1 | grep -v "true $(cat /run/killed)" | grep -o true; do sleep 0.1; done`, prints: "true\n"},
		},
		end: imageEnd{code: 4, prints: "fails once\nweb serves\n"},
	},
	"s6 without a script": {
		root: "inits", files: map[string]string{"etc/s6/web/run": serveScript},
		config:   v1.Config{Entrypoint: []string{"s6-svscan", "/etc/s6"}},
		ready:    "s6-svstat -o up /etc/s6/web | grep true",
		commands: []imageCommand{isFirst("s6-svscan"), leavesNoZombie},
		end:      imageEnd{prints: "web serves\n"},
	},
	"runit": {
		root: "inits",
		files: map[string]string{
			"etc/runit/1":         "#!/bin/sh\necho stage 1\ninstall -m100 /dev/null /run/runit.stopit\ninstall -m000 /dev/null /run/runit.reboot\n",
			"etc/runit/2":         "#!/bin/sh\nexec runsvdir -P /etc/service\n",
			"etc/runit/3":         "#!/bin/sh\nsv force-stop /etc/service/*\necho stage 3\n",
			"etc/service/web/run": serveScript,
		},
		links:    map[string]string{"usr/sbin/init": "runit"},
		config:   v1.Config{Entrypoint: []string{"/sbin/init"}, StopSignal: "SIGCONT"},
		ready:    "sv status web | grep ^run:",
		commands: []imageCommand{{script: "readlink /proc/1/exe", prints: "/usr/sbin/runit\n"}, leavesNoZombie},
		end:      imageEnd{code: 137, prints: "stage 3\n", forced: true},
		machine:  &imageEnd{prints: "stage 3\n"},
	},
	// Not an init by its name, so that a machine runs it beside Drover's.
	"runsvdir": {
		root: "inits", files: map[string]string{"etc/service/web/run": serveScript},
		config:   v1.Config{Entrypoint: []string{"runsvdir", "/etc/service"}, StopSignal: "SIGHUP"},
		ready:    "sv status web | grep ^run:",
		commands: []imageCommand{leavesNoZombie, {script: "sv -v down web | cut -d : -f 1-3", prints: "ok: down: web\n"}},
		end:      imageEnd{code: 111, prints: "web serves\n"},
	},
	"tini": {
		root: "inits", config: v1.Config{Entrypoint: []string{"tini", "--", "sh", "-c", trapScript}}, ready: "test -e /run/ready",
		commands: []imageCommand{isFirst("tini"), leavesNoZombie},
		end:      imageEnd{code: 5, prints: "serves\nends\n"},
	},
	"dumb-init": {
		root: "inits", config: v1.Config{Entrypoint: []string{"dumb-init", "sh", "-c", trapScript}}, ready: "test -e /run/ready",
		commands: []imageCommand{isFirst("dumb-init"), leavesNoZombie},
		end:      imageEnd{code: 5, prints: "ends\n"},
	},
	"catatonit, whose child is killed": {
		root: "inits", config: v1.Config{Entrypoint: []string{"catatonit", "--", "sh", "-c", trapScript}}, ready: "test -e /run/ready",
		commands: []imageCommand{isFirst("catatonit"), leavesNoZombie},
		end:      imageEnd{by: "kill -9 -1", code: 137, prints: "serves\n"},
	},
	"an init of the engine": {
		root: "inits", config: v1.Config{Entrypoint: []string{"sh", "-c", trapScript}}, ready: "test -e /run/ready", init: driver.InitDrover,
		commands: []imageCommand{leavesNoZombie},
		end:      imageEnd{code: 5, prints: "serves\nends\n"},
	},
	"init of BusyBox": {
		root: "inits",
		files: map[string]string{
			"etc/inittab": "::sysinit:/bin/touch /run/ready\n::respawn:/srv/web\n::shutdown:/srv/down\n",
			"srv/web":     serveScript, "srv/down": "#!/bin/sh\necho goes down\n",
		},
		links:    map[string]string{"usr/sbin/init": "/bin/busybox"},
		config:   v1.Config{Entrypoint: []string{"/sbin/init"}},
		ready:    "test -e /run/ready",
		commands: []imageCommand{isFirst("init"), leavesNoZombie},
		reboot:   "busybox reboot",
		end:      imageEnd{code: 137, prints: "goes down\n", forced: true},
		machine:  &imageEnd{prints: "goes down\n"},
	},
	"sysvinit": {
		root: "inits",
		files: map[string]string{
			"etc/inittab": "id:2:initdefault:\nsi::sysinit:/bin/touch /run/ready\npf::powerwait:/sbin/init 0\nl0:0:wait:/sbin/halt -d -f -p\n",
		},
		config:   v1.Config{Entrypoint: []string{"/sbin/init"}, StopSignal: "SIGPWR"},
		ready:    "test -e /run/ready",
		commands: []imageCommand{isFirst("init"), leavesNoZombie},
		end:      imageEnd{code: 137, forced: true},
		machine:  &imageEnd{},
	},
	"OpenRC": {
		root: "inits",
		files: map[string]string{
			"etc/runlevels/sysinit/.wh..wh..opq": "", "etc/runlevels/boot/.wh..wh..opq": "", "etc/runlevels/default/.wh..wh..opq": "",
			"etc/init.d/web": "#!/sbin/openrc-run\ncommand=/bin/sleep\ncommand_args=1000000\ncommand_background=yes\npidfile=/run/web.pid\n",
		},
		links:    map[string]string{"etc/runlevels/default/web": "/etc/init.d/web"},
		config:   v1.Config{Entrypoint: []string{"/sbin/openrc-init"}},
		ready:    "rc-service web status",
		commands: []imageCommand{isFirst("openrc-init"), leavesNoZombie, {script: "rc-status default | grep -o 'web.*started' | tr -d ' '", prints: "web[started\n"}},
		end:      imageEnd{code: 137, prints: "Stopping web", forced: true},
		machine:  &imageEnd{prints: "Stopping web"},
	},
	// It mounts, which a container must not.
	"systemd": {
		root: "inits",
		files: map[string]string{
			"etc/systemd/system/web.service": "[Service]\nUser=nobody\nExecStart=/bin/sh -c 'echo web serves; exec sleep 1000000'\n",
		},
		links: map[string]string{
			"usr/sbin/init": "/lib/systemd/systemd", "etc/systemd/system/default.target": "/lib/systemd/system/multi-user.target",
			"etc/systemd/system/multi-user.target.wants/web.service": "../web.service",
		},
		config: v1.Config{Entrypoint: []string{"/sbin/init"}, StopSignal: "SIGRTMIN+3"},
		ready:  "systemctl is-active web && { systemctl is-system-running || { systemctl list-units --failed --plain; false; }; }",
		commands: []imageCommand{
			isFirst("systemd"), leavesNoZombie,
			{script: "journalctl -u web -o cat | grep serves; ps -o user= -p $(systemctl show -p MainPID --value web)", prints: "web serves\nnobody\n"},
			{script: "kill -9 -1"},
			{script: "systemctl start web; systemctl is-active web", prints: "active\n"},
		},
		machineOnly: true,
		end:         imageEnd{code: 255},
		machine:     &imageEnd{},
	},
	// At SIGTERM it would only execute itself again.
	"systemd without a stop signal": {
		root: "inits",
		links: map[string]string{
			"usr/sbin/init": "/lib/systemd/systemd", "etc/systemd/system/default.target": "/lib/systemd/system/basic.target",
		},
		config: v1.Config{Entrypoint: []string{"/sbin/init"}}, ready: "systemctl is-active basic.target",
		machineOnly: true, reboot: "systemctl reboot",
		end:     imageEnd{code: 255},
		machine: &imageEnd{},
	},
	"PostgreSQL": {
		root: "services",
		files: map[string]string{
			"start": "#!/bin/sh -e\ntest -e ~/data || initdb -A trust -D ~/data\nexec postgres -D ~/data -k /tmp\n",
		},
		setSpec: func(s *driver.ServerSpec) {
			s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 30, MountPath: "/var/lib/postgresql"}}
		},
		config: v1.Config{
			Entrypoint: []string{"/start"}, User: "postgres", StopSignal: "SIGINT",
			Env: []string{"PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin", "PGHOST=/tmp"},
		},
		ready: "pg_isready",
		commands: []imageCommand{
			{script: "id -un; stat -c %U:%a ~/data", prints: "postgres\npostgres:700\n"},
			{script: `for q in 'create table t (n int)' 'insert into t select generate_series(1, 1000)' 'select sum(n) from t'; do psql -At -c "$q"; done`, prints: "CREATE TABLE\nINSERT 0 1000\n500500\n"},
			{user: "root", script: "id -un; ps -o user= -C postgres | sort -u", prints: "root\npostgres\n"},
		},
		kept: []imageCommand{{script: `psql -At -c 'insert into t values (1)' -c 'select sum(n) > 500500 from t'`, prints: "INSERT 0 1\nt\n"}},
		end:  imageEnd{prints: "database system is shut down"},
	},
	"Redis": {
		root:   "services",
		config: v1.Config{Entrypoint: []string{"redis-server"}, Cmd: []string{"--save", "900 1"}, User: "redis", WorkingDir: "/var/lib/redis"},
		ready:  "redis-cli ping | grep PONG",
		commands: []imageCommand{
			{script: "redis-cli set a b; redis-cli get a; redis-cli bgsave >/dev/null; until test -e dump.rdb; do sleep 0.1; done; stat -c %U dump.rdb", prints: "OK\nb\nredis\n"},
		},
		end: imageEnd{prints: "bye bye"},
	},
	// It logs to /dev/stdout, which the engine opens as root.
	"nginx": {
		root: "services", files: map[string]string{"var/www/html/x": "served\n"},
		links:  map[string]string{"var/log/nginx/error.log": "/dev/stderr", "var/log/nginx/access.log": "/dev/stdout"},
		config: v1.Config{Entrypoint: []string{"nginx", "-g", "daemon off;"}, StopSignal: "SIGQUIT"},
		ready:  getPage("/"),
		commands: []imageCommand{
			{script: getPage("/x"), prints: "served\n"},
			{script: "ps -o user= -C nginx | sort -u", prints: "root\nwww-data\n"},
		},
		end: imageEnd{prints: "GET /x"},
	},
	"Node": {
		root: "services",
		config: v1.Config{User: "www-data", Entrypoint: []string{"node", "-e", `
			process.on('SIGTERM', () => { console.log('ends'); process.exit(6) })
			require('http').createServer((q, a) => a.end(require('child_process').execSync('echo $0 $((6*7))'))).listen(3000)
		`}},
		ready: getPage(":3000"),
		commands: []imageCommand{
			{script: getPage(":3000"), prints: "/bin/sh 42\n"},
			{script: `node -p 'os.userInfo().username + " of " + os.hostname()'`, prints: "www-data of test-vm\n"},
		},
		end: imageEnd{code: 6, prints: "ends\n"},
	},
	"Python": {
		root: "services",
		config: v1.Config{User: "nobody", Entrypoint: []string{"python3", "-c", `
import multiprocessing, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(multiprocessing.Pool(2).map(abs, [-1, -2]), subprocess.check_output('id -un', shell=True), flush=True)
open('/tmp/ready', 'w')
while True: signal.pause()
`}},
		ready:    "test -e /tmp/ready",
		commands: []imageCommand{{script: "stat -c %U:%G /tmp/ready", prints: "nobody:nogroup\n"}},
		end:      imageEnd{code: 3, prints: "[1, 2] b'nobody\\n'\n"},
	},
	"musl": {
		root: "services", config: v1.Config{Entrypoint: []string{"musl-program"}, User: "redis"}, ready: "grep SigCgt:.*4000 /proc/$(pgrep musl-program)/status",
		end: imageEnd{code: 7, prints: "redis runs, and its host is known\n"},
	},
	// Without /etc, a folder for temporary files or a name for its user.
	"one static program": {
		root: rootStatic, links: map[string]string{"bin/sh": "busybox"},
		config:   v1.Config{Entrypoint: []string{"sh", "-c", "trap 'exit 8' TERM; echo serves; busybox touch /ready; while :; do busybox sleep 0.2; done"}},
		ready:    "test -e /ready",
		commands: []imageCommand{{user: "1234:5", script: "busybox id -u; busybox id -g; echo $HOME $PWD", prints: "1234\n5\n/ /\n"}},
		end:      imageEnd{code: 8, prints: "serves\n"},
	},
}

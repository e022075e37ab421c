// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// sleeps is the entrypoint of an image whose commands are all run beside it.
var sleeps = v1.Config{Entrypoint: []string{"sh", "-c", "trap exit TERM; sleep 1000000 & wait"}}

// takeMemory is a command of BusyBox's shell that uses 60 MB.
const takeMemory = `x=$(/bin/busybox head -c 60000000 /dev/zero | /bin/busybox tr "\0" x)`

// workloads are of Debian's packages, as images are.
var workloads = map[string]imageCase{
	// As docker:dind: the VOLUME is an ext4, on which overlay2 works. On a busy host dockerd ends when containerd has not
	// started within 15 s.
	"Docker": {
		root: "workloads",
		files: map[string]string{
			"start": "#!/bin/sh\ntrap 'kill $pid; wait $pid; exit 0' TERM\nuntil dockerd & pid=$!; wait $pid; do sleep 1; done\n",
			"srv/Dockerfile": "FROM scratch\nCOPY busybox /bin/busybox\n" +
				`RUN ["/bin/busybox", "sh", "-c", "/bin/busybox mkdir /www; echo built >/www/index.html"]` + "\n" +
				`ENTRYPOINT ["/bin/busybox", "httpd", "-f", "-h", "/www"]` + "\n",
		},
		config: v1.Config{Entrypoint: []string{"/start"}, Volumes: map[string]struct{}{"/var/lib/docker": {}}},
		setSpec: func(s *driver.ServerSpec) {
			s.MemoryBytes, s.RootDiskBytes = 1<<30, 4<<30
			s.Ports = []driver.Port{{Name: "web", Protocol: "TCP", Port: 8080}}
		},
		ready: "docker info",
		commands: []imageCommand{
			{script: "docker info --format '{{.Driver}} {{.CgroupVersion}}'", prints: "overlay2 2\n"},
			{script: "cp /bin/busybox /srv && docker build --quiet --tag web /srv >/dev/null"},
			{script: "docker run --detach --name web --restart always --publish 8080:80 --memory 32m web >/dev/null 2>&1"},
			{script: "docker exec web /bin/busybox cat /sys/fs/cgroup/memory.max", prints: "33554432\n"},
			{script: "docker run --rm --memory 32m --entrypoint /bin/busybox web sh -c '" + takeMemory + "' 2>/dev/null", code: 137},
			// The disk is full, and then has room again.
			{script: "fallocate -l $(($(df --output=avail -B1 /var/lib/docker | tail -1) - (16 << 20))) /var/lib/docker/full && " +
				"docker run --rm --entrypoint /bin/busybox web dd if=/dev/zero of=/big bs=1M count=64 2>&1 | grep -o 'No space left on device'", prints: "No space left on device\n"},
			{script: "rm /var/lib/docker/full && docker run --rm --entrypoint /bin/busybox web echo again", prints: "again\n"},
		},
		kept: []imageCommand{{script: "docker image inspect web >/dev/null"}},
		page: "built\n",
	},
	// As a node of kind: systemd is process 1, and containerd a service.
	"Node": {
		root:     "workloads",
		links:    map[string]string{"usr/sbin/init": "/lib/systemd/systemd", "etc/systemd/system/default.target": "/lib/systemd/system/multi-user.target"},
		config:   v1.Config{Entrypoint: []string{"/sbin/init"}, StopSignal: "SIGRTMIN+3"},
		setSpec:  func(s *driver.ServerSpec) { s.MemoryBytes = 1 << 30 },
		ready:    "systemctl is-active containerd && ctr version",
		commands: []imageCommand{isFirst("systemd"), {script: "mkdir -p /srv/root/bin && cp /bin/busybox /srv/root/bin && ctr run --rm --rootfs /srv/root one /bin/busybox echo runs", prints: "runs\n"}},
	},
	"File systems and a firewall": {
		root: "workloads", config: sleeps,
		ready: "true",
		commands: []imageCommand{
			// The kernel asks for 1,000 modules that do not exist.
			{script: "seq 1000 | xargs -P 100 -I N sh -c 'ip link add x type missingN 2>/dev/null || echo refused' | sort -u", prints: "refused\n"},
			{script: "mkdir /mnt/a && truncate -s 16M /srv/disk && mke2fs -q /srv/disk && fuse2fs /srv/disk /mnt/a && echo of fuse >/mnt/a/file && cat /mnt/a/file && umount /mnt/a", prints: "of fuse\n"},
			{script: "mount -o loop /srv/disk /mnt/a && cat /mnt/a/file && stat -f -c %T /mnt/a", prints: "of fuse\next2/ext3\n"},
			{script: "nft add table inet t && nft 'add chain inet t in { type filter hook input priority 0; }' && nft add rule inet t in tcp dport 80 drop && nft list table inet t | grep -c 'dport 80 drop'", prints: "1\n"},
		},
		end: imageEnd{code: 143},
	},
	"Chromium": {
		root: "chromium", config: sleeps,
		files:   map[string]string{"srv/page.html": "<h1>a page</h1>"},
		setSpec: func(s *driver.ServerSpec) { s.MemoryBytes = 1 << 30 },
		ready:   "true",
		commands: []imageCommand{
			{script: "chromium --headless --no-sandbox --disable-gpu --window-size=400,300 --screenshot=/srv/page.png file:///srv/page.html >/srv/log 2>&1 && head -c 4 /srv/page.png | tail -c 3 && test $(stat -c %s /srv/page.png) -gt 1000", prints: "PNG"},
		},
		end: imageEnd{code: 143},
	},
}

// testWireGuard connects two machines by WireGuard.
func (e *env) testWireGuard(t *testing.T) {
	t.Parallel()
	changes, err := e.driver.Watch(t.Context()) // which also connects machines to each other
	assert.NoError(t, err)
	go func() {
		for range changes { // they are not needed
		}
	}()
	c := imageCase{config: sleeps}
	image := c.imageOn(t, newRoot(t, "workloads"))
	var specs []driver.ServerSpec
	var keys []string
	for _, name := range []string{"left", "right"} {
		spec := e.specOfImage(t, image)
		spec.Name, spec.MemoryBytes = name, 512<<20
		e.startRun(t, spec, "")
		e.waitForCommand(t, spec, "umask 077; wg genkey >/srv/key")
		key, code, err := e.execShell(t, spec, imageCommand{script: "wg pubkey </srv/key"})
		assert.True(t, err == nil && code == 0, "a key of %s: %d, %v, %s", name, code, err, key)
		specs, keys = append(specs, spec), append(keys, strings.TrimSpace(key))
	}
	for n, address := range []string{"192.0.2.1", "192.0.2.2"} {
		e.checkCommands(t, specs[n], []imageCommand{{script: "ip link add wg0 type wireguard && ip address add " + address + "/24 dev wg0 && ip link set wg0 up && " +
			"wg set wg0 listen-port 51820 private-key /srv/key peer " + keys[1-n] + " allowed-ips 192.0.2.0/24 endpoint " + specs[1-n].Name + ":51820"}})
	}
	e.waitForCommand(t, specs[0], "busybox ping -c 1 -W 5 192.0.2.2")
	e.checkCommands(t, specs[1], []imageCommand{{script: "busybox ping -c 1 -s 1000 192.0.2.1 >/dev/null && wg show wg0 latest-handshakes | grep -cv '\t0$'", prints: "1\n"}})
}

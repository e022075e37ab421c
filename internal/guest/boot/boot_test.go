// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs/bugstest"
	"cloudnative.tw/drover/test/tier"
)

// TestMachine boots an image twice with the same data disk. The checks share both boots, which take
// seconds each under emulation.
func TestMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 256<<20)
	m.config.Args, m.config.User, m.config.WorkingDir = []string{"program", "serve"}, "", "/srv/made"
	m.config.Env, m.config.StopSignal = []string{"A=image", "PATH=/bin"}, "SIGQUIT"
	m.config.Network.Resolvers, m.config.Network.Search = []netip.Addr{netip.MustParseAddr("192.0.2.53")}, []string{"example.org"}
	m.start()
	c := m.dial()
	m.waitLog("serving +\n")
	m.waitFor("errors", "on stderr\n")
	checkWorld(m, c)
	checkUsers(m, c)
	checkExec(m, c)
	checkState(m, c)
	checkModules(m, c)
	checkFiles(m, c)
	c = checkReconnect(m, c)
	exit, _ := m.exec(c, nil, "write", "/kept", "until the next boot")
	assert.True(t, exit.Code == 0, "writing ends with %+v", exit)
	m.pressPower()
	got, want := m.end(), (config.Claim{Started: true, Ended: true, Code: 7})
	assert.True(t, got == want, "the guest claims %+v, want %+v", got, want)
	assert.Contains(t, "the log", m.read("log"), "got quit")
	checkSecondBoot(m)
}

// checkSecondBoot boots once more with the disk, which has become larger.
func checkSecondBoot(m *machine) {
	t := m.t
	assert.NoError(t, os.Truncate(m.path(config.DataSerial), 512<<20))
	m.config.Args = []string{"program", "serve"}
	m.start()
	c := m.dial()
	m.waitLog("serving ++\n")
	_, kept := m.exec(c, nil, "read", "/kept")
	assert.True(t, kept == "until the next boot", "the file has %q", kept)
	r := m.report(c, nil)
	assert.True(t, r.Disk >= 400<<20, "the disk has %d bytes", r.Disk)
	exit, _ := m.exec(c, nil, "exit", "3")
	assert.True(t, exit.Code == 3, "it ends with %+v", exit)
	checkRestart(m, c)
}

// checkRestart checks that reboot(2) in the image boots the machine again, with the modules of its kernel although they are
// no longer on the host, and that the image cannot kill the agent.
func checkRestart(m *machine, c *client.Client) {
	t := m.t
	assert.NoError(t, os.Remove(m.modules))
	reboot := wire.Exec{Args: []string{"program", "reboot", fmt.Sprint(unix.LINUX_REBOOT_CMD_RESTART)}}
	_, _ = c.Exec(t.Context(), client.Command{Exec: reboot, Stdout: io.Discard, Stderr: io.Discard}) // its session is lost
	assert.NoError(t, c.Close())
	m.waitLog("serving +++\n")
	c = m.dial()
	exit, _ := m.exec(c, nil, "open", "/dev/fuse")
	assert.True(t, exit == client.Exit{}, "it ends with %+v", exit)
	exit, _ = m.exec(c, nil, "kill all")
	killed := client.Exit{Code: 137, Signal: 9} // the end of the image's command may come first, and ends all others
	assert.True(t, exit == client.Exit{} || exit == killed, "it ends with %+v", exit)
	got, want := m.end(), (config.Claim{Started: true, Ended: true, Code: 137, Signal: 9})
	assert.True(t, got == want, "the guest claims %+v, want %+v", got, want)
}

// checkWorld checks what programs find.
func checkWorld(m *machine, c *client.Client) {
	t := m.t
	r := m.report(c, nil)
	for _, entry := range []string{"A=image", "PATH=/bin", "HOME=/root", "HOSTNAME=box"} {
		assert.True(t, slices.Contains(r.Env, entry), "the environment has no %s: %q", entry, r.Env)
	}
	for what, ok := range map[string]bool{
		"folder": r.Dir == "/srv/made", "host name": r.Hostname == "box", "hosts": strings.Contains(r.Hosts, "10.0.2.15\tbox\n"),
		"resolvers": r.Resolv == "nameserver 192.0.2.53\nsearch example.org\n", "root": strings.HasPrefix(r.Mounts, "overlay / overlay rw"),
		"cgroups": strings.Contains(r.Mounts, "/sys/fs/cgroup cgroup2"), "shared memory": strings.Contains(r.Mounts, "/dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,inode64 0 0\n"),
		"settings":     r.Settings == "1\n262144\n8192\n524288\n",
		"capabilities": strings.HasSuffix(r.Caps, "1ffffffffff"), "modprobe": strings.HasPrefix(r.Modprobe, "/usr/lib/modules/") && strings.HasSuffix(r.Modprobe, "-cloud-amd64/modprobe\n"), "input": r.Stdin == "/dev/null",
		"limits": strings.Contains(strings.Join(strings.Fields(r.Limits), " "), "Max open files 1048576 1048576"),
	} {
		assert.True(t, ok, "%s: %+v", what, r)
	}
	assert.True(t, r.Disk >= 200<<20 && r.Disk <= 256<<20, "the disk of 256 MiB has %d bytes", r.Disk)
	assert.True(t, !strings.Contains(r.Mounts, "/data") || !strings.Contains(r.Mounts, "ext4"), "the disk below the root is to be seen: %s", r.Mounts)
	exit, err := c.Exec(t.Context(), client.Command{Exec: wire.Exec{Args: []string{"program", "read", "/elsewhere"}}, Stdout: io.Discard, Stderr: io.Discard})
	if assert.NoError(t, err); exit.Code == 0 {
		t.Error("a link of the image was followed")
	}
}

// checkUsers checks each form of a user.
func checkUsers(m *machine, c *client.Client) {
	for text, want := range map[string]string{
		"":         "0 0 [0] /root",
		"app":      "1000 1001 [29 50 1001] /home/app",
		"1000":     "1000 1001 [29 50 1001] /home/app",
		"app:50":   "1000 50 [50] /home/app",
		"2000":     "2000 0 [0] /",
		"5:6":      "5 6 [6] /",
		"1000:app": "1000 1001 [1001] /home/app",
	} {
		r := m.report(c, func(c *client.Command) { c.User = &text })
		home := ""
		for _, entry := range r.Env {
			if value, ok := strings.CutPrefix(entry, "HOME="); ok {
				home = value
			}
		}
		slices.Sort(r.Groups)
		if got := fmt.Sprint(r.UID, r.GID, " ", r.Groups, " ", home); strings.Join(strings.Fields(got), " ") != want {
			m.t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	app, nobody := "app", "nobody"
	if exit, out := m.exec(c, func(c *client.Command) { c.User = &app }, "stdout"); exit.Code != 0 || out != "by its name\n" {
		m.t.Errorf("a user's program writes %q to /dev/stdout, %+v", out, exit)
	}
	_, err := c.Exec(m.t.Context(), client.Command{Exec: wire.Exec{Args: []string{"program"}, User: &nobody}, Stdout: io.Discard, Stderr: io.Discard})
	assert.ErrorIs(m.t, "a user that is not there", err, client.ErrRefused, `"nobody"`)
}

// checkExec checks the ends of commands, their input and output.
func checkExec(m *machine, c *client.Client) {
	t := m.t
	for _, test := range []struct {
		args []string
		want client.Exit
	}{{[]string{"exit", "0"}, client.Exit{}}, {[]string{"exit", "255"}, client.Exit{Code: 255}}, {[]string{"die", "9"}, client.Exit{Code: 137, Signal: 9}}} {
		exit, _ := m.exec(c, nil, test.args...)
		assert.True(t, exit == test.want, "%q ends with %+v", test.args, exit)
	}
	for args, kind := range map[string]error{"none": client.ErrNotFound, "script": client.ErrNotFound, "plain": client.ErrNotFound, "/bin/plain": client.ErrNotExecutable, "rubbish": client.ErrNotExecutable, "/bin": client.ErrNotExecutable} {
		_, err := c.Exec(t.Context(), client.Command{Exec: wire.Exec{Args: []string{args}}, Stdout: io.Discard, Stderr: io.Discard})
		assert.ErrorIs(t, args, err, kind)
	}
	input := strings.Repeat("input\n", 50_000)
	_, out := m.exec(c, func(c *client.Command) { c.Stdin = strings.NewReader(input) }, "cat")
	assert.True(t, out == input, "%d bytes come back of %d", len(out), len(input))
	r := m.report(c, func(c *client.Command) { c.TTY, c.Stderr, c.Size = true, nil, wire.Size{Rows: 5, Columns: 70} })
	assert.True(t, r.Terminal && strings.HasPrefix(r.Stdin, "/dev/pts/") && slices.Contains(r.Env, "TERM=xterm"), "with a terminal: %+v", r)
	_, first := m.exec(c, nil, "read", "/proc/1/comm")
	assert.Equal(t, "the name of process 1", first, "drover-init\n")
	exit, out := m.exec(c, nil, "keep")
	assert.True(t, exit.Code == 0 && out == "left a child\n", "with a child that keeps the output: %q, %+v", out, exit)
	exit, out = m.exec(c, nil, "orphans")
	assert.True(t, exit.Code == 0 && out == "left orphans\n", "with orphans: %q, %+v", out, exit)
	assert.Eventually(t, "all orphans to be waited for", func(testing.TB) error {
		if _, out := m.exec(c, nil, "zombies"); out != "0\n" {
			return fmt.Errorf("%s are not", strings.TrimSpace(out))
		}
		return nil
	})
}

// checkState checks what the agent does beside commands.
func checkState(m *machine, c *client.Client) {
	t := m.t
	interfaces, err := c.Interfaces(t.Context())
	if assert.NoError(t, err); len(interfaces) != 1 || interfaces[0].Name != "eth0" || !strings.HasPrefix(fmt.Sprint(interfaces[0].Addresses), "[10.0.2.15/24") {
		t.Errorf("the interfaces are %+v", interfaces)
	}
	assert.NoError(t, c.SetTime(t.Context(), time.Unix(2_000_000_000, 0)))
	assert.NoError(t, c.Reseed(t.Context(), []byte("a seed")))
}

// checkFiles copies a folder into a guest without tar, and back.
func checkFiles(m *machine, c *client.Client) {
	t := m.t
	folder := t.TempDir()
	assert.NoError(t, os.WriteFile(folder+"/run", bytes.Repeat([]byte("run"), 100_000), 0o700))
	assert.NoError(t, os.Symlink("run", folder+"/link"))
	var in, out bytes.Buffer
	assert.NoError(t, files.Pack(&in, folder))
	assert.NoError(t, c.WriteFiles(t.Context(), "/tmp/copied", &in, io.Discard))
	_, text := m.exec(c, nil, "read", "/tmp/copied/link")
	assert.True(t, len(text) == 300_000, "%d bytes came into the guest", len(text))
	assert.NoError(t, c.ReadFiles(t.Context(), "/tmp/copied", &out))
	assert.NoError(t, files.Unpack(&out, files.Destination{Folder: folder, Name: "back"}))
	info, err := os.Stat(folder + "/back/run")
	target, linkErr := os.Readlink(folder + "/back/link")
	if assert.NoError(t, errors.Join(err, linkErr)); info.Size() != 300_000 || info.Mode() != 0o700 || target != "run" {
		t.Errorf("%d bytes with mode %s and a link to %q came back", info.Size(), info.Mode(), target)
	}
}

// checkReconnect checks that a new connection of the host, without the guest seeing the end of the one
// before in time, gets a new session.
func checkReconnect(m *machine, c *client.Client) *client.Client {
	ended := make(chan error, 1)
	go func() {
		ended <- assert.ErrorOf(c.Exec(m.t.Context(), client.Command{Exec: wire.Exec{Args: []string{"program", "sleep"}}, Stdout: io.Discard, Stderr: io.Discard}))
	}()
	for range 5 {
		assert.NoError(m.t, c.Close())
		c = m.dial()
		if exit, _ := m.exec(c, nil, "exit", "4"); exit.Code != 4 {
			m.t.Errorf("after a new connection it ends with %+v", exit)
		}
	}
	assert.ErrorIs(m.t, "a command of the old connection", assert.Receive(m.t, "its end", ended), client.ErrLost)
	return c
}

// TestEnds boots a machine for each way in which an entrypoint ends or does not start.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   config.Claim
		says   string
		inGate bool
	}{
		"signal":            {func(c *config.Config) { c.Args = []string{"program", "die", "9"} }, config.Claim{Started: true, Ended: true, Code: 137, Signal: 9}, "", true},
		"success":           {func(c *config.Config) { c.Args = []string{"/bin/program", "exit", "0"} }, config.Claim{Started: true, Ended: true}, "", false},
		"failure":           {func(c *config.Config) { c.Args = []string{"program", "exit", "3"}; c.Network = config.Network{} }, config.Claim{Started: true, Ended: true, Code: 3}, "", false},
		"not found":         {func(c *config.Config) { c.Args = []string{"none"} }, config.Claim{Ended: true, Failed: true, Code: 127}, `"none" is not found`, false},
		"not executable":    {func(c *config.Config) { c.Args = []string{"rubbish"} }, config.Claim{Ended: true, Failed: true, Code: 126}, "neither a program", false},
		"no user":           {func(c *config.Config) { c.User = "nobody" }, config.Claim{Ended: true, Failed: true, Code: 128}, `user is "nobody"`, false},
		"no disk":           {func(c *config.Config) { c.Disks.Root = "other" }, config.Claim{Ended: true, Failed: true, Code: 128}, `no disk with the serial number "other"`, false},
		"memory":            {func(c *config.Config) { c.Args = []string{"program", "eat"} }, config.Claim{Started: true, Ended: true, Code: 137, Signal: 9, OOMKilled: "program"}, "", false},
		"memory of a child": {func(c *config.Config) { c.Args = []string{"program", "eat in a child"} }, config.Claim{Started: true, Ended: true, Code: 137, OOMKilled: "exe"}, "", false},
		"child":             {func(c *config.Config) { c.Args = []string{"program", "keep"} }, config.Claim{Started: true, Ended: true}, "", false},
		"init":              {func(c *config.Config) { c.Args = []string{"/sbin/init", "report"} }, config.Claim{Started: true, Ended: true}, "", false},
		"power off":         {reboot(unix.LINUX_REBOOT_CMD_POWER_OFF), config.Claim{Started: true, Ended: true}, "", false},
		"halt":              {reboot(unix.LINUX_REBOOT_CMD_HALT), config.Claim{Started: true, Ended: true}, "", false},
		"an init that powers off": {func(c *config.Config) {
			c.Args = []string{"/sbin/init", "reboot", fmt.Sprint(unix.LINUX_REBOOT_CMD_POWER_OFF)}
		}, config.Claim{Started: true, Ended: true}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !test.inGate {
				tier.Full(t, "each end takes a boot; the gate has one, and the codes as the agent's commands have them")
			}
			m := newMachine(t, 0)
			test.change(&m.config)
			m.start()
			got := m.end()
			assert.Contains(t, "the guest says", got.Message, test.says)
			got.Message = ""
			assert.True(t, got == test.want, "the guest claims %+v, want %+v", got, test.want)
		})
	}
}

// reboot has the entrypoint call reboot(2).
func reboot(command int) func(*config.Config) {
	return func(c *config.Config) { c.Args = []string{"program", "reboot", fmt.Sprint(command)} }
}

// TestFloodedResult checks that a guest which writes to its result without an end fills nothing on its host.
func TestFloodedResult(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 0)
	m.config.Args = []string{"program", "flood", config.ResultSerial}
	m.start()
	got := m.end()
	assert.True(t, !got.Ended, "the guest claims %+v", got)
	assert.Contains(t, "the log", m.read("log"), "wrote ")
	info, err := os.Stat(m.path("result"))
	assert.NoError(t, err)
	assert.True(t, info.Size() == config.ResultBytes, "the result has %d bytes: %s", info.Size(), m.read("log"))
}

// TestGrace checks that an entrypoint that does not end at the stop signal is killed when its time is
// over, and that this is reported.
func TestGrace(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes another boot; the gate has one that ends at the stop signal")
	m := newMachine(t, 64<<20)
	m.config.Args, m.config.GraceSeconds = []string{"program", "stubborn"}, 1
	m.start()
	m.waitLog("stubborn\n")
	m.pressPower()
	got, want := m.end(), (config.Claim{Started: true, Ended: true, Code: 137, Signal: 9})
	assert.True(t, got == want, "the guest claims %+v, want %+v", got, want)
}

// TestInit checks that an init is process 1 of the image, and gets its stop signal at the power button.
func TestInit(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes another boot, for few images")
	m := newMachine(t, 64<<20)
	m.config.Args, m.config.StopSignal = []string{"/sbin/init", "serve"}, "SIGQUIT"
	m.start()
	m.waitLog("serving +\n")
	m.waitFor("errors", "on stderr\n")
	c := m.dial()
	assert.Equal(t, "the first process", m.report(c, nil).Inits, "/sbin/init serve ")
	m.pressPower()
	got, want := m.end(), (config.Claim{Started: true, Ended: true, Code: 7})
	assert.True(t, got == want, "the guest claims %+v, want %+v", got, want)
}

// TestSeededBugs checks that the tests of this package find the bugs of its files.
func TestSeededBugs(t *testing.T) {
	t.Parallel()
	bugstest.Check(t, "internal/guest/boot", func(overlay string) []string {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", buildSeeded, "sh", overlay, dir)
		cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		assert.Require(t, err == nil, "the guest is not built: %v\n%s", err, out)
		return []string{seededInitramfs + "=" + filepath.Join(dir, "initramfs")}
	}, "-test.timeout=4m", "-test.run=TestMachine|TestInit|TestEnds/(child|power_off)$")
}

// buildSeeded builds the guest with all bugs, as hack/guest.sh builds the guest.
const buildSeeded = `go build -overlay="$1" -ldflags "-s -w" -o "$2/program" ./cmd/drover-guest &&
	go run ./hack/guest/initramfs "$2/program" "$(hack/guest-kernel.sh)/modules" >"$2/initramfs"`

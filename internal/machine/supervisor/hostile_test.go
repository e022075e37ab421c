// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// hostileEnv names the hostile program for tests that run as another user.
const hostileEnv = "DROVER_TEST_HOSTILE"

// hostileProgram returns the path of the hostile program, which every user may execute.
func hostileProgram(t *testing.T) string {
	t.Helper()
	path := os.Getenv(hostileEnv)
	if path == "" {
		path = filepath.Join(framework.PublicDir(t), "hostile")
		assert.NoError(t, errors.Join(framework.BuildProgram(path, "test/hostile"), os.Chmod(path, 0o755)))
	}
	return path
}

// hostileTargets has the files and processes that the program attacks: see test/hostile.
type hostileTargets struct {
	Disk, Key, Own              string
	Drover, QEMU, Other, Handle int
	Record, Port                int
	IsBroken                    bool
}

// rights say of an attack whether it may succeed: of a program in the supervisor's place that runs as Drover's user,
// and of one that root has given a separate user. Of one that has called DenyStarts neither may, but for the network.
type rights struct{ sameUser, ownUser bool }

// allowed are the attacks that nothing denies. A supervisor makes
// its guest's connections, and asks the kernel for their routes. A program in its place can be started again as itself,
// or from memory: none of that gives it more.
// Landlock cannot let it signal QEMU alone, since the two are started apart.
var allowed = map[string]rights{
	"connect": {true, true}, "netlink": {true, true}, "itself": {true, true}, "memory": {true, true}, "own handle": {true, true},
	"signal of QEMU": {true, true}, "signal of Drover": {true, false}, "signal of a machine": {true, false},
}

// TestHostileSupervisor runs a hostile program in a supervisor's place, as confined as that is. It checks which attacks
// succeed from its start, and which succeed from a supervisor that its guest has taken over.
func TestHostileSupervisor(t *testing.T) {
	t.Parallel()
	if !confine.FiltersCalls() || confine.ABI() < 6 {
		t.Skip("this kernel does not prevent everything")
	}
	hostile := hostileProgram(t)
	for name, isBroken := range map[string]bool{"in its place": false, "broken into": true} {
		for who, isOwn := range map[string]bool{"same user": false, "own user": true} {
			t.Run(name+"/"+who, func(t *testing.T) {
				t.Parallel()
				if isOwn && os.Geteuid() != 0 {
					t.Skip("only root can start it as another user")
				}
				results := attackAsSupervisor(t, hostile, isBroken, isOwn)
				for attack, got := range results {
					if !isOwn && attack == "root" {
						continue // which it is, or may not become
					}
					may := maySucceed(attack, isBroken, isOwn)
					isSuccess := got == "succeeds"
					assert.True(t, isSuccess == may && (isSuccess || isDenied(got)), "%s: %q, want success: %v", attack, got, may)
				}
				assert.True(t, len(results) >= len(allowed), "tried was %v", results)
			})
		}
	}
}

// maySucceed reports whether an attack may succeed of a program that runs as Drover's user or as a separate one.
func maySucceed(attack string, isBroken, isOwn bool) bool {
	switch {
	case isBroken:
		return attack == "own handle" || attack == "connect" || attack == "netlink" // the guest's network is its work
	case isOwn:
		return allowed[attack].ownUser
	}
	return allowed[attack].sameUser
}

func isDenied(result string) bool {
	for _, err := range []error{unix.EACCES, unix.EPERM, unix.EXDEV, unix.EISDIR} {
		if strings.HasSuffix(result, err.Error()) {
			return true
		}
	}
	return false
}

// attackAsSupervisor starts the program as a supervisor is started, and returns what came of each attack.
func attackAsSupervisor(t *testing.T, hostile string, isBroken, isOwn bool) map[string]string {
	t.Helper()
	var user, other *confine.User
	if isOwn {
		user, other = &confine.User{ID: 2100065810, GroupID: 2100065810}, &confine.User{ID: 2100065811, GroupID: 2100065811}
	}
	attacked := machine.Machine{Path: privateDir(t), Mark: "00000000-0000-0000-0000-000000000001"}
	elsewhere, qemu := privateDir(t), startIdle(t, user)
	target := hostileTargets{
		Disk: filepath.Join(elsewhere, "root.qcow2"), Key: filepath.Join(elsewhere, "key"), Own: attacked.File("root.qcow2"),
		Drover: os.Getpid(), QEMU: qemu, Other: startIdle(t, other), Handle: processFD, Record: recordFD, IsBroken: isBroken,
		Port: int(framework.PortOf(framework.Listen(t, "tcp4", "127.0.0.1:0"))),
	}
	for _, path := range []string{target.Disk, target.Key, target.Own} {
		assert.NoError(t, os.WriteFile(path, []byte("secret"), 0o600))
	}
	o := invocationOf(t, attacked, hostile, qemu)
	o.User = user
	token, err := json.Marshal(target)
	assert.NoError(t, err)
	o.Config.Token = string(token)
	cmd, err := Spawn(t.Context(), o)
	assert.NoError(t, err)
	err = cmd.Wait()
	var results map[string]string
	text := framework.ReadFile(t, o.Errors.Name())
	assert.Require(t, json.Unmarshal([]byte(text), &results) == nil, "it printed %q, %v", text, err)
	return results
}

// invocationOf returns the start of a supervisor with all that it is given.
func invocationOf(t *testing.T, attacked machine.Machine, hostile string, qemu int) Invocation {
	t.Helper()
	file := func(f *os.File, err error) *os.File {
		t.Helper()
		assert.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	made := func(name string) *os.File {
		return file(os.OpenFile(attacked.File(name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600))
	}
	installed, err := installation.InstallProgram(filepath.Join(framework.PublicDir(t), "programs"), hostile)
	assert.NoError(t, err)
	fd, err := unix.PidfdOpen(qemu, 0)
	assert.NoError(t, err)
	o := Invocation{
		Program: file(installed.File(), nil), Mark: attacked.Mark, Dir: attacked.Path, Lock: file(attacked.TryLock("supervisor.lock")), Process: file(os.NewFile(uintptr(fd), "QEMU"), nil),
		Listener: made("listener"), Record: file(MakeRecord(filepath.Join(privateDir(t), "end"))),
		SerialLog: made("serial"), SerialAside: made("serial.1"), Output: made("output"), OutputAside: made("output.1"), Errors: made("errors"),
	}
	for _, to := range []**os.File{&o.Monitor, &o.Serial, &o.Agent} {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		assert.NoError(t, err)
		*to = file(os.NewFile(uintptr(ends[0]), "socket"), nil)
		file(os.NewFile(uintptr(ends[1]), "socket"), nil)
	}
	return o
}

// privateDir makes a folder as Drover's are, whatever the umask.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private")
	assert.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

// startIdle starts a process that waits, and returns its ID.
func startIdle(t *testing.T, user *confine.User) int {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sleep", "600")
	if user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.ID, Gid: user.GroupID}}
	}
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process.Pid
}

// TestHostileSupervisorAsPlainUser runs the hostile program as a user who is not root.
func TestHostileSupervisorAsPlainUser(t *testing.T) {
	t.Setenv(hostileEnv, hostileProgram(t))
	framework.RunAsPlainUser(t, "TestHostileSupervisor")
}

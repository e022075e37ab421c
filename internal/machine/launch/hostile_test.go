// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestMain runs the tests, or the hostile program if it was started in QEMU's place.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"-nodefaults", "-L", "--version"}, os.Args[1]) {
		attackHost()
		return
	}
	os.Exit(m.Run())
}

// targets are the files, sockets and processes that the hostile program attacks.
type targets struct {
	// Disk is another machine's, and Key a file of Drover's.
	Disk, Key, Socket, Abstract string
	// Parent is Drover, and Other another machine.
	Parent, Other int
	OtherPort     int32
}

// attackHost tries what a QEMU must not do, and prints what came of each try.
func attackHost() {
	i := slices.Index(os.Args, "-append")
	if i < 0 { // only queried
		fmt.Println("version 7.2")
		return
	}
	var t targets
	if err := json.Unmarshal([]byte(os.Args[i+1]), &t); err != nil {
		panic(err)
	}
	results := map[string]string{}
	for name, try := range t.attacks(os.Args[slices.Index(os.Args, "-kernel")+1]) {
		results[name] = "succeeds"
		if err := try(); err != nil {
			results[name] = err.Error()
		}
	}
	maps.Copy(results, ownRights())
	_ = json.NewEncoder(os.Stdout).Encode(results)
}

// ownRights returns what /proc/self/status would show, which cannot be read.
func ownRights() map[string]string {
	var sets [2]unix.CapUserData
	_ = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0])
	noNewPrivs, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	groups, _ := os.Getgroups()
	bounding := ""
	for capability := range unix.CAP_LAST_CAP + 1 {
		if has, _ := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0); has == 1 {
			bounding += fmt.Sprint(capability, " ")
		}
	}
	return map[string]string{
		"no_new_privs": fmt.Sprint(noNewPrivs), "groups": fmt.Sprint(groups), "bounding set": bounding,
		"capabilities": fmt.Sprintf("%x", uint64(sets[1].Effective|sets[1].Permitted)<<32|uint64(sets[0].Effective|sets[0].Permitted)),
	}
}

func (t targets) attacks(kernel string) map[string]func() error {
	read := func(path string) func() error {
		return func() error { return closeNew(os.Open(path)) }
	}
	write := func(path string) func() error {
		return func() error { return closeNew(os.Create(path)) }
	}
	dial := func(network, address string) func() error {
		return func() error {
			return closeNew((&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), network, address))
		}
	}
	listen := func(port int32) func() error {
		return func() error {
			return closeNew(new(net.ListenConfig).Listen(context.Background(), "tcp4", fmt.Sprintf("127.0.0.1:%d", port)))
		}
	}
	socket := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}
	}
	limits := func(pid int) func() error {
		return func() error { return unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil) }
	}
	signal := func(pid int) func() error { return func() error { return syscall.Kill(pid, 0) } }
	trace := func(pid int) func() error { return func() error { return unix.PtraceSeize(pid) } } // does not stop it
	return map[string]func() error{
		"read another disk":  read(t.Disk),
		"read a key":         read(t.Key),
		"read shadow":        read("/etc/shadow"),
		"read passwd":        read("/etc/passwd"),
		"read own disk":      read("own.qcow2"),
		"list a folder":      func() error { _, err := os.ReadDir("/etc"); return err },
		"find a disk":        func() error { _, err := os.Stat(t.Disk); return err },
		"change a mode":      func() error { return os.Chmod(t.Disk, 0o666) },
		"write a disk":       func() error { return closeNew(os.OpenFile(t.Disk, os.O_WRONLY, 0)) },
		"truncate a disk":    func() error { return os.Truncate(t.Disk, 1) },
		"remove a disk":      func() error { return os.Remove(t.Disk) },
		"link a disk":        func() error { return os.Link(t.Disk, t.Disk+".link") },
		"new file":           write("new"),
		"new file outside":   write(t.Disk + ".new"),
		"new file in tmp":    writeTemporary,
		"shell":              func() error { return exec.CommandContext(context.Background(), "/bin/sh", "-c", "true").Run() },
		"become root":        func() error { return syscall.Setuid(0) },
		"read own kernel":    read(kernel),
		"unix socket":        dial("unix", t.Socket),
		"abstract socket":    dial("unix", "@"+t.Abstract),
		"signal Drover":      signal(t.Parent),
		"signal a machine":   signal(t.Other),
		"trace Drover":       trace(t.Parent),
		"trace a machine":    trace(t.Other),
		"memory of Drover":   read(fmt.Sprintf("/proc/%d/mem", t.Parent)),
		"memory of machines": read(fmt.Sprintf("/proc/%d/mem", t.Other)),
		"other port":         listen(t.OtherPort),
		"mptcp":              socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
		"netlink":            socket(unix.AF_NETLINK, unix.SOCK_RAW, 0),
		"io_uring":           func() error { return rawCall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(new([128]byte)))) }, //nolint:gosec // a system call
		"a handle":           func() error { return closeNew(openHandle(unix.PidfdOpen(os.Getpid(), 0))) },
		"the other end":      func() error { _, err := unix.GetsockoptInt(0, unix.SOL_SOCKET, unix.SO_PEERPIDFD); return err },
		"senders":            func() error { return unix.SetsockoptInt(0, unix.SOL_SOCKET, unix.SO_PASSPIDFD, 1) },
		"linger": func() error {
			return unix.SetsockoptLinger(0, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
		},
		"listener": func() error {
			return rawCall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
		},
		"owner":              func() error { _, err := unix.FcntlInt(0, unix.F_SETOWN, os.Getpid()); return err },
		"watch":              func() error { return closeNew(openHandle(unix.InotifyInit1(0))) },
		"namespace":          func() error { return rawCall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0) },
		"limits of Drover":   limits(t.Parent),
		"limits of machines": limits(t.Other),
		"listen anywhere":    listenUnbound,
		"connect":            dial("tcp4", fmt.Sprintf("127.0.0.1:%d", t.OtherPort)),
		"udp":                dial("udp4", "127.0.0.1:9"),
	}
}

// writeTemporary makes a file where every user may, and removes it.
func writeTemporary() error {
	file, err := os.CreateTemp("", "drover-hostile-")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// listenUnbound listens without a choice of the port.
func listenUnbound() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Listen(fd, 1), unix.Close(fd))
}

func rawCall(number, a, b uintptr) error {
	if _, _, errno := unix.Syscall(number, a, b, 0); errno != 0 {
		return errno
	}
	return nil
}

func openHandle(fd int, err error) (*os.File, error) { return os.NewFile(uintptr(fd), "handle"), err }

func closeNew[C interface{ Close() error }](c C, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// never marks an attack that no version of Landlock denies. Zero marks an attack that is denied without Landlock too.
const never = 1000

// deniedSince has the first version of Landlock that denies an attack: by a machine that runs as
// Drover's user, and by a machine to which root has given a separate user.
var deniedSince = map[string]struct{ sameUser, ownUser int }{
	"read another disk": {1, 0}, "read a key": {1, 0}, "read shadow": {1, 0}, "read passwd": {1, 1}, "read own disk": {1, 0},
	"list a folder": {1, 1}, "find a disk": {never, 0}, "change a mode": {0, 0},
	"write a disk": {1, 0}, "truncate a disk": {3, 0}, "remove a disk": {1, 0}, "link a disk": {1, 0},
	"new file": {1, 0}, "new file outside": {1, 0}, "new file in tmp": {1, 1}, "shell": {1, 1}, "become root": {never, 0},
	"unix socket": {0, 0}, "abstract socket": {0, 0}, "mptcp": {0, 0}, "netlink": {0, 0}, "io_uring": {0, 0}, "namespace": {0, 0},
	"a handle": {0, 0}, "the other end": {0, 0}, "senders": {0, 0}, "linger": {0, 0}, "listener": {0, 0}, "owner": {0, 0}, "watch": {0, 0},
	"signal Drover": {6, 0}, "signal a machine": {6, 0}, "trace Drover": {0, 0}, "trace a machine": {0, 0},
	"memory of Drover": {1, 0}, "memory of machines": {1, 0},
	"other port": {0, 0}, "read own kernel": {never, never}, "listen anywhere": {0, 0}, "limits of Drover": {0, 0}, "limits of machines": {0, 0}, "connect": {0, 0}, "udp": {0, 0},
}

// TestHostile runs a hostile program in QEMU's place, as confined as QEMU is, and checks
// what it can do with each version of Landlock.
func TestHostile(t *testing.T) {
	t.Parallel()
	isRoot := os.Geteuid() == 0
	self := publicCopy(t) // once: a file that is being written cannot be executed
	for _, abi := range []int{0, 1, 2, 3, 4, 5, 6, 9} {
		for name, isOwn := range map[string]bool{"same user": false, "own user": true} {
			t.Run(fmt.Sprintf("ABI %d/%s", abi, name), func(t *testing.T) {
				t.Parallel()
				switch newest := confine.ABI(); {
				case abi > newest:
					t.Skipf("this kernel has ABI %d", newest)
				case isOwn && !isRoot:
					t.Skip("only root can start machines as other users")
				}
				checkAttacks(t, abi, isOwn, attack(t, self, abi, isOwn))
			})
		}
	}
}

func checkAttacks(t *testing.T, abi int, isOwn bool, got map[string]string) {
	t.Helper()
	isRoot := os.Geteuid() == 0
	for name, since := range deniedSince {
		from := since.sameUser
		if isOwn {
			from = since.ownUser
		}
		switch {
		case !isRoot && slices.Contains([]string{"read shadow", "become root"}, name):
			continue // which this user may not do anyway, or maybe
		case strings.HasPrefix(name, "memory ") && abi < from:
			continue // Yama may forbid it
		}
		_, tried := got[name]
		assert.True(t, tried, "%s was not tried", name)
		assert.True(t, isDenied(got[name]) == (abi >= from), "%s: %q, want it denied: %v", name, got[name], abi >= from)
	}
	want := map[string]string{"no_new_privs": "1"}
	if isOwn {
		want = map[string]string{
			"no_new_privs": "1", "groups": "[]", "bounding set": "", "capabilities": "0",
		}
	}
	for name, value := range want {
		assert.Equal(t, name, got[name], value)
	}
}

func isDenied(result string) bool {
	return slices.ContainsFunc([]error{syscall.EACCES, syscall.EPERM, syscall.EXDEV}, func(err error) bool { return strings.HasSuffix(result, err.Error()) })
}

// attack runs the hostile program with a version of Landlock, and returns what came of it.
func attack(t *testing.T, self string, abi int, isOwn bool) map[string]string {
	t.Helper()
	var finder confine.Finder
	policy, err := finder.Find(t.Context(), logr.Discard(), self)
	assert.NoError(t, err)
	newest := confine.ABI()
	assert.Require(t, policy.ABI == newest, "it is confined with ABI %d, want %d", policy.ABI, newest)
	policy.ABI = abi
	dir, config, files := makeTargets(t)
	defer files.Close()
	users := &Users{}
	if isOwn {
		users, err = NewUsers(DefaultUser, DefaultUserIDs)
		assert.NoError(t, err)
	}
	out, err := os.Create(filepath.Join(dir, "out"))
	assert.NoError(t, err)
	defer func() { _ = out.Close() }()
	order := Invocation{Program: self, Policy: policy, Users: users, Dir: dir, Temp: t.TempDir(), Output: out}
	hostile, err := Start(t.Context(), config, order, Endpoints{out, out, out, out, out, out}, files)
	assert.NoError(t, err)
	assert.NoError(t, hostile.Wait())
	text := framework.ReadFile(t, out.Name())
	var results map[string]string
	err = json.Unmarshal([]byte(text), &results)
	assert.Require(t, err == nil, "it printed %q: %v", text, err)
	return results
}

// publicCopy returns a copy of this program that every user may execute.
func publicCopy(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	path := filepath.Join(framework.PublicDir(t), "qemu")
	assert.NoError(t, errors.Join(framework.CopyFile(self, path), os.Chmod(path, 0o755)))
	return path
}

// makeTargets makes a machine's directory, and the targets of its hostile program.
func makeTargets(t *testing.T) (dir string, config MachineConfig, files *Files) {
	t.Helper()
	dir, other := privateDir(t), privateDir(t)
	x := targets{Parent: os.Getpid(), Other: startOther(t), Abstract: fmt.Sprint("drover-hostile-", os.Getpid(), t.Name())}
	x.Disk, x.Key, x.Socket = filepath.Join(other, "root.qcow2"), filepath.Join(other, "key"), filepath.Join(other, "s")
	for _, path := range []string{x.Disk, x.Key, filepath.Join(dir, "own.qcow2"), filepath.Join(dir, "kernel")} {
		assert.NoError(t, os.WriteFile(path, []byte("secret"), 0o600))
	}
	for _, address := range []string{x.Socket, "@" + x.Abstract} {
		framework.Listen(t, "unix", address)
	}
	x.OtherPort = framework.PortOf(framework.Listen(t, "tcp4", "127.0.0.1:0"))
	text, err := json.Marshal(x)
	assert.NoError(t, err)
	kernel, err := os.Open(filepath.Join(dir, "kernel"))
	assert.NoError(t, err)
	files = &Files{}
	config = plainConfig()
	config.Root, config.Volumes, config.SeedFD, config.AgentFD = nil, nil, 0, 0
	config.Kernel = &Kernel{FD: files.Add(kernel), Cmdline: string(text)}
	return dir, config, files
}

// privateDir makes a folder as Drover's are, whatever the umask.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private")
	assert.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

// startOther starts a process that stands for another machine, as a separate user where
// that is possible.
func startOther(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "600")
	if os.Geteuid() == 0 {
		const other = 2100065600 // outside of the range
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	}
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process.Pid
}

// TestHostileAsPlainUser runs the hostile program as a user who is not root.
func TestHostileAsPlainUser(t *testing.T) {
	t.Parallel()
	framework.RunAsPlainUser(t, "TestHostile")
}

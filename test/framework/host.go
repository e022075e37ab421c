// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/rand"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filelock"
)

// RequireRoot skips a test that only root can run.
func RequireRoot(t testing.TB, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can " + reason)
	}
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	return string(content)
}

// EditJSON changes a JSON file as editors do: it writes a new file and renames it to the old name.
func EditJSON[T any](t testing.TB, path string, change func(*T)) {
	t.Helper()
	var v T
	assert.NoError(t, json.Unmarshal([]byte(ReadFile(t, path)), &v))
	change(&v)
	content, err := json.Marshal(v)
	assert.NoError(t, errors.Join(err, os.WriteFile(path+"~", content, 0o600), os.Rename(path+"~", path)))
}

// Listen listens until the test ends.
func Listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// PortOf returns the port of a listener.
func PortOf(l net.Listener) int32 { return int32(l.Addr().(*net.TCPAddr).Port) } //nolint:gosec // 16 bits

// SocketPair returns two connected Unix stream sockets: a file, which the caller passes to a process and closes, and a
// connection, which is closed after the test.
func SocketPair(t testing.TB) (file *os.File, conn *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.NoError(t, err)
	return os.NewFile(uintptr(fds[0]), "socket"), connOf(t, os.NewFile(uintptr(fds[1]), "socket"))
}

// ConnPair returns both ends of a connection by Unix sockets, which are closed after the test.
func ConnPair(t testing.TB) (here, there *net.UnixConn) {
	t.Helper()
	file, there := SocketPair(t)
	return connOf(t, file), there
}

func connOf(t testing.TB, socket *os.File) *net.UnixConn {
	t.Helper()
	conn, err := net.FileConn(socket)
	assert.NoError(t, errors.Join(err, socket.Close()))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UnixConn)
}

// Network is a network namespace, like a pod's, and the address at which this host reaches it.
type Network struct {
	Name, Address string

	index int
}

// networks has the indexes that networks of this process use.
var networks struct {
	sync.Mutex
	used [64]bool
}

// NewNetwork makes a network and removes it after the test. second is the second byte of its addresses, 18 or 19. Packages
// whose tests run at the same time use different ones.
func NewNetwork(t testing.TB, second int) (name, address string) {
	t.Helper()
	RequireRoot(t, "make a network namespace")
	n, err := OpenNetwork(t.Context(), second)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n.Name, n.Address
}

// OpenNetwork makes a network that the caller must Close. A process can have 63 networks.
func OpenNetwork(ctx context.Context, second int) (n Network, err error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return n, err
	}
	pid := os.Getpid()
	at := func(last int) string { return fmt.Sprintf("198.%d.%d.%d", second, pid%256, 4*n.index+last) }
	networks.Lock()
	for n.index = 1; n.index < len(networks.used); n.index++ {
		// Another process whose PID has the same last byte may use the address, or have left it when it was killed.
		isTaken := slices.ContainsFunc(taken, func(a net.Addr) bool { return a.String() == at(1)+"/30" })
		if !networks.used[n.index] && !isTaken {
			networks.used[n.index] = true
			break
		}
	}
	networks.Unlock()
	if n.index == len(networks.used) {
		return n, errors.New("there are too many networks")
	}
	n.Name, n.Address = fmt.Sprintf("d%d-%d-%d", second, pid, n.index), at(2)
	link := n.Name + "h"
	for _, command := range []string{
		"netns add " + n.Name,
		"link add " + link + " type veth peer name eth0 netns " + n.Name,
		"addr add " + at(1) + "/30 dev " + link, "link set " + link + " up",
		"-n " + n.Name + " addr add " + n.Address + "/30 dev eth0",
		"-n " + n.Name + " link set eth0 up", "-n " + n.Name + " link set lo up",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			return n, errors.Join(fmt.Errorf("ip %s: %w: %s", command, err, out), n.Close(context.WithoutCancel(ctx)))
		}
	}
	return n, nil
}

// Close removes the network. Its processes must have ended.
func (n Network) Close(ctx context.Context) error {
	// The link is removed at once, but the namespace only some time after its last process has ended.
	_ = exec.CommandContext(ctx, "ip", "link", "del", n.Name+"h").Run()
	err := exec.CommandContext(ctx, "ip", "netns", "del", n.Name).Run()
	networks.Lock()
	defer networks.Unlock()
	networks.used[n.index] = false
	return err
}

// tryLock takes a lock that all tests of this user share on this host, whatever their checkout and
// TMPDIR. It returns nil if another process has the lock.
func tryLock(name string) (unlock func(), err error) {
	dir := fmt.Sprintf("/tmp/.drover-test-locks-%d", os.Getuid())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return filelock.TryLock(filepath.Join(dir, name))
}

var leases struct {
	sync.Mutex
	all []func() // keeps the garbage collector from closing the files, which would end the locks
}

// leaseName takes a lock until this process ends, and reports whether the lock was free.
func leaseName(name string) (bool, error) {
	unlock, err := tryLock(name)
	if unlock == nil {
		return false, err
	}
	leases.Lock()
	defer leases.Unlock()
	leases.all = append(leases.all, unlock)
	return true, nil
}

// maxStarts is how many clusters start on this host at a time: with more, each start would take longer.
const maxStarts = 2

// lockStart waits until this process may start a cluster. The caller must call unlock after the start.
func lockStart() (unlock func(), err error) {
	err = assert.Poll(context.Background(), "a turn to start a cluster", func() error {
		for n := range maxStarts {
			if unlock, err = tryLock(fmt.Sprintf("start-%d", n)); err != nil || unlock != nil {
				return err
			}
		}
		return fmt.Errorf("%d other clusters are starting on this host", maxStarts)
	})
	return unlock, err
}

// ShortTempDir is t.TempDir for a folder with sockets: their paths are limited to 107 bytes, and
// t.TempDir has the test's name in its path.
func ShortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "") //nolint:usetesting // t.TempDir is too long
	if err == nil {
		err = os.Chmod(dir, 0o755) // #nosec -- as t.TempDir has it: machines have different users
	}
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// ListTree returns all files below a path, each with its mode, size and modification time.
func ListTree(t testing.TB, path string) []string {
	t.Helper()
	var all []string
	assert.NoError(t, filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all = append(all, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime()))
		}
		return err
	}))
	return all
}

// FreeAddress returns a loopback address with a free port, chosen as FreePort does.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := FindFreeAddress(t.Context())
	assert.NoError(t, err)
	return address
}

// FindFreeAddress is FreeAddress for callers outside tests: it returns the error.
func FindFreeAddress(ctx context.Context) (string, error) {
	port, err := findFreePort(ctx)
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// FreePort returns a TCP port that is free on all addresses, IPv4 and IPv6. Nothing else is
// likely to use it: outgoing connections and Docker choose from the range of ephemeral ports,
// which begins above 30,000, and other tests on this host lease their ports until their
// process ends. It is for programs that cannot choose a port themselves and report it.
func FreePort(t testing.TB) int32 {
	t.Helper()
	port, err := findFreePort(t.Context())
	assert.NoError(t, err)
	return port
}

func findFreePort(ctx context.Context) (int32, error) {
	for range 100 {
		port := rand.IntnRange(10_000, 30_000)
		leased, err := leaseName(fmt.Sprintf("port-%d", port))
		if err != nil {
			return 0, err
		}
		if !leased {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			return int32(port), listener.Close() //nolint:gosec // below 30,000
		}
	}
	return 0, errors.New("none of 100 ports from 10000 to 30000 is free")
}

// plainUserID is the ID of a user who exists nowhere else.
const plainUserID = 2100065800

// PublicDir returns a folder that all users can search, for programs that a machine's
// user executes.
func PublicDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	assert.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	return dir
}

// PublicProgram links or copies a program into a folder that all users can search. They may not be able to
// search the checkout's folder, for example if it is in root's home.
func PublicProgram(t testing.TB, path string) string {
	t.Helper()
	public := filepath.Join(PublicDir(t), filepath.Base(path))
	if os.Link(path, public) == nil {
		return public
	}
	content, err := os.ReadFile(path) // #nosec -- a test's
	assert.NoError(t, errors.Join(err, WriteProgram(public, content)))
	return public
}

// PlainUser returns a user who is not root, for programs that root starts. It skips the test
// if the test itself is not run by root.
func PlainUser(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: the other subtest covers this user")
	}
	return &syscall.Credential{Uid: plainUserID, Gid: plainUserID}
}

// RunAsPlainUser runs some of a package's tests again, as a user who is not root: "Test" with all its
// subtests, or "Test/A|B" with the subtests A and B. The tests run in a folder with copies of hack/ and
// standalone/go.mod, by which RepositoryRoot finds it.
func RunAsPlainUser(t *testing.T, tests ...string) {
	t.Helper()
	runAsPlainUser(t, PlainUser(t), LinuxGuest{}, tests)
}

// RunWithGuestAsPlainUser is RunAsPlainUser for tests that boot the Linux guest.
func RunWithGuestAsPlainUser(t *testing.T, tests ...string) {
	t.Helper()
	user := PlainUser(t)
	runAsPlainUser(t, user, BuildLinuxGuest(t, t.TempDir()), tests)
}

func runAsPlainUser(t *testing.T, user *syscall.Credential, guest LinuxGuest, tests []string) {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	dir, err := os.MkdirTemp("", "drover-plain-") //nolint:usetesting // t.TempDir is too long for sockets
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	work, program := filepath.Join(dir, "repository"), filepath.Join(dir, "test")
	self, err := os.Executable()
	assert.NoError(t, err)
	assert.NoError(t, errors.Join(
		os.CopyFS(filepath.Join(work, "hack"), os.DirFS(filepath.Join(root, "hack"))),
		os.Mkdir(filepath.Join(work, "standalone"), 0o700), CopyFile(filepath.Join(root, "standalone", "go.mod"), filepath.Join(work, "standalone", "go.mod")),
		CopyFile(self, program), guest.copyTo(filepath.Join(dir, "guest")), ChownAll(dir, user),
	))
	var patterns, names []string
	for _, test := range tests {
		name, subtests, _ := strings.Cut(test, "/")
		names = append(names, name)
		patterns = append(patterns, "^"+name+"$")
		if subtests != "" {
			patterns[len(patterns)-1] += "/^(" + subtests + ")$"
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run="+strings.Join(patterns, "|"))
	cmd.Dir, cmd.Env = work, append(os.Environ(), "HOME="+dir)
	if guest.Kernel != "" {
		cmd.Env = append(cmd.Env, builtGuestEnv+"="+filepath.Join(dir, "guest"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	out, err := cmd.CombinedOutput()
	assert.Require(t, err == nil, "as user %d: %v\n%s", user.Uid, err, out)
	for _, name := range names {
		assert.True(t, strings.Contains(string(out), "--- PASS: "+name+" "), "as user %d %s did not pass:\n%s", user.Uid, name, out)
	}
}

// CopyFile copies a file. Only the owner of the copy may use it.
func CopyFile(source, target string) error {
	content, err := os.ReadFile(source)
	return errors.Join(err, writeProgram(target, content, 0o700))
}

// WriteProgram writes a program that can be started at once.
func WriteProgram(path string, content []byte) error { return writeProgram(path, content, 0o755) }

// writeProgram prevents forks while it writes: a forked child has a copy of the descriptor until it
// calls exec, and until then the kernel refuses to execute the file (ETXTBSY).
func writeProgram(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, mode)
}

// ChownAll changes the owner of a folder and everything in it.
func ChownAll(dir string, user *syscall.Credential) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, root.Lchown(path, int(user.Uid), int(user.Gid)))
	})
}

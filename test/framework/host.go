// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// RequireRoot skips a test that only root can run.
func RequireRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can " + why)
	}
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	return string(content)
}

// EditJSON changes a file of JSON like an editor that writes a new one and moves it into place.
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

// SocketPair returns two connected stream sockets of Unix: one as a file, to be passed on and closed, and one as a
// connection, which is closed after the test.
func SocketPair(t testing.TB) (file *os.File, conn *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.NoError(t, err)
	return os.NewFile(uintptr(fds[0]), "socket"), connOf(t, os.NewFile(uintptr(fds[1]), "socket"))
}

// ConnPair returns two connected connections of Unix sockets, which are closed after the test.
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

// Network is a network namespace, as a pod has one, that this host reaches at an address.
type Network struct {
	Name, Address string

	index int
}

// networks are the numbers of the networks of this process.
var networks struct {
	sync.Mutex
	used [64]bool
}

// NewNetwork makes a network that goes with a test. Each package has another second byte for its addresses, 18 or 19.
func NewNetwork(t testing.TB, second int) (name, address string) {
	t.Helper()
	RequireRoot(t, "make a network namespace")
	n, err := OpenNetwork(t.Context(), second)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n.Name, n.Address
}

// OpenNetwork makes a network that the caller must Close, of which a process can have 63.
func OpenNetwork(ctx context.Context, second int) (n Network, err error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return n, err
	}
	pid := os.Getpid()
	at := func(last int) string { return fmt.Sprintf("198.%d.%d.%d", second, pid%256, 4*n.index+last) }
	networks.Lock()
	for n.index = 1; n.index < len(networks.used); n.index++ {
		// Another process with such a number may have one, or have been killed before it removed it.
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
	// The end of the link is removed at once, and the namespace some time after its last process.
	_ = exec.CommandContext(ctx, "ip", "link", "del", n.Name+"h").Run()
	err := exec.CommandContext(ctx, "ip", "netns", "del", n.Name).Run()
	networks.Lock()
	defer networks.Unlock()
	networks.used[n.index] = false
	return err
}

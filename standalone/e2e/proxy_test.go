// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// secondOfNetworks is the second byte of the addresses of this package's networks.
const secondOfNetworks = 18

// proxy is an HTTP proxy that refuses every connection and notes to which server it was asked for.
type proxy struct {
	url string

	sync.Mutex
	asked []string
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	listener := framework.Listen(t, "tcp", "127.0.0.1:0")
	p := &proxy{url: "http://" + listener.Addr().String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.refuse(conn)
		}
	}()
	return p
}

func (p *proxy) refuse(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	line, _ := bufio.NewReader(conn).ReadString('\n')
	if fields := strings.Fields(line); len(fields) > 1 {
		p.Lock()
		p.asked = append(p.asked, fields[1])
		p.Unlock()
	}
	_, _ = fmt.Fprint(conn, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
}

// environment has programs use the proxy for every server that is not of this host's loopback.
func (p *proxy) environment() []string {
	return []string{"HTTPS_PROXY=" + p.url, "HTTP_PROXY=" + p.url, "NO_PROXY=", "no_proxy="}
}

func (p *proxy) wasAskedFor(server string) bool {
	p.Lock()
	defer p.Unlock()
	return slices.Contains(p.asked, server)
}

// TestProxy checks that drover up and all commands of drover connect to its API directly, at an address that a
// proxy does not reach.
func TestProxy(t *testing.T) {
	t.Parallel()
	p, dir := newProxy(t), filepath.Join(framework.ShortTempDir(t), "data")
	address := addressOfHost(t)
	env := append(p.environment(), "DROVER_DATA_DIR="+dir)
	up, err := framework.StartProcess(droverBinary(t), []string{"up", "--bind-address", address, "--port", "0", "--vm-driver", "fake", "--unsafe-no-fsync"}, env)
	assert.NoError(t, err)
	t.Cleanup(func() {
		if err := up.Stop(); err != nil {
			t.Errorf("%v\n%s", err, up.Output())
		}
	})
	waitUntilReady(t, dir, up.HasEnded)
	for _, args := range [][]string{{"kubectl", "get", "namespace", "default"}, {"vm", "list"}, {"status"}, {"doctor"}} {
		got := runDrover(t, "", env, args...)
		text := got.out + got.errOut
		assert.True(t, (got.code == 0 || args[0] == "doctor") && !strings.Contains(text, "Bad Gateway"), "drover %v: code %d, printed %s", args, got.code, text)
	}
	own := runDrover(t, "", append(env, "KUBECONFIG="+filepath.Join(dir, "kubeconfig")), "kubectl", "get", "namespace", "default")
	assert.True(t, own.code == 0, "drover kubectl with another file as KUBECONFIG: %+v", own)
	port, err := os.ReadFile(filepath.Join(dir, "port"))
	assert.NoError(t, err)
	server := net.JoinHostPort(address, strings.TrimSpace(string(port)))
	assert.True(t, !p.wasAskedFor(server), "the proxy was asked for %s", server)
}

// waitUntilReady waits for a drover up, and not for one that has ended.
func waitUntilReady(t *testing.T, dir string, hasEnded func() bool) {
	t.Helper()
	ended := false
	assert.Eventually(t, "drover up is ready", func(testing.TB) error {
		if ended = hasEnded(); ended {
			return nil
		}
		_, err := os.Stat(filepath.Join(dir, "run", "ready"))
		return err
	})
	assert.Require(t, !ended, "drover up ended before it was ready")
}

// addressOfHost returns an address of this host that is not a loopback address, which a network of the test adds.
func addressOfHost(t *testing.T) string {
	t.Helper()
	_, peer := framework.NewNetwork(t, secondOfNetworks)
	addresses, err := net.InterfaceAddrs()
	assert.NoError(t, err)
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.Contains(net.ParseIP(peer)) && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	t.Fatalf("the host lacks an address beside %s: %v", peer, addresses)
	return ""
}

// TestProxyOfForeignClusters checks that the API servers of others are reached through the proxy that the user has set.
func TestProxyOfForeignClusters(t *testing.T) {
	t.Parallel()
	bin := filepath.Dir(droverBinary(t))
	for i, command := range [][]string{
		{"kubectl-vm", "list"},
		{"drover-controller", "--vm-driver=fake", "--fake-dir=" + t.TempDir(), "--metrics-bind-address=0", "--health-probe-bind-address=0"},
		{"drover", "vm", "list"},
		{"drover", "kubectl", "get", "namespaces"},
	} {
		t.Run(strings.Join(command[:1+i/2], " "), func(t *testing.T) {
			t.Parallel()
			p, server := newProxy(t), "192.0.2.1:"+strconv.Itoa(1000+i) // which nobody has
			file := filepath.Join(t.TempDir(), "kubeconfig")
			assert.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://%s"}}], contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}`, server), 0o600))
			args := append(slices.Clone(command[1:]), "--kubeconfig="+file)
			program, err := framework.StartProcess(filepath.Join(bin, command[0]), args, append(p.environment(), "KUBECONFIG=", "DROVER_DATA_DIR="))
			assert.NoError(t, err)
			t.Cleanup(func() { _ = program.Kill() })
			assert.Eventually(t, "the proxy is asked", func(testing.TB) error {
				return assert.ErrorUnless(p.wasAskedFor(server), "not for %s; it printed %s", server, program.Output())
			})
		})
	}
}

// TestOutputWithoutReader checks that programs which run for long do not end when the reader of their output does,
// as with head.
func TestOutputWithoutReader(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(framework.ShortTempDir(t), "data")
	up := startUnread(t, "drover", "up", "--data-dir", dir, "--port", "0", "--without-controller", "--unsafe-no-fsync")
	waitUntilReady(t, dir, func() bool { return errors.Is(up.Process.Signal(syscall.Signal(0)), os.ErrProcessDone) })
	assert.NoError(t, up.Process.Signal(os.Interrupt))
	up.requireExit(t)
	state, err := os.ReadFile(filepath.Join(dir, "run", "state.json"))
	assert.True(t, err == nil && bytes.Contains(state, []byte(`"endedAt"`)), "drover up did not end in order: %s, %v", state, err)
	startUnread(t, "drover-controller", "--kubeconfig", filepath.Join(t.TempDir(), "missing")).requireExit(t)
}

// unread is a program whose output is a pipe without a reader.
type unread struct {
	*exec.Cmd

	ended chan *os.ProcessState
}

func startUnread(t *testing.T, program string, args ...string) unread {
	t.Helper()
	out, in, err := os.Pipe()
	assert.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(droverBinary(t)), program), args...)
	cmd.Stdout, cmd.Stderr = in, in
	assert.NoError(t, errors.Join(out.Close(), cmd.Start(), in.Close()))
	u := unread{cmd, make(chan *os.ProcessState, 1)}
	go func() {
		_ = cmd.Wait()
		u.ended <- cmd.ProcessState
	}()
	return u
}

// requireExit waits until the program has ended by itself, and not by a signal.
func (u unread) requireExit(t *testing.T) {
	t.Helper()
	state := <-u.ended
	assert.True(t, state.Exited(), "%s: %s", filepath.Base(u.Path), state)
}

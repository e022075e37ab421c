// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package destinations has the cases of destinations that a guest reaches, and of senders that reach it: a program in the guest tries every
// way out, and the test every way in. They are the same for all drivers; what comes of them stands in tables.
//
// Start with outward and inward in tables.go, and with Run here. The program is test/prober. Packets go only to this host
// and to network namespaces that the test makes, unless a driver is broken.
package destinations

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// Egress has the settings of an operator.
type Egress struct {
	Deny   bool
	Denied []string
}

// Harness describes a driver to the cases.
type Harness struct {
	// Open returns the driver of a new engine, which takes images by tag from a registry without TLS on this host.
	Open func(t *testing.T, registry string, egress Egress) driver.Driver
	// IsMachine is set if a server is a machine, which has an edge, and not a container.
	IsMachine bool
	// PreparePod is set if a server is a machine in a pod, which boots no container image. It connects the pod's network,
	// and completes the spec of a guest that has the same programs, and serves by its arguments.
	PreparePod func(t *testing.T, around Surroundings, spec *driver.ServerSpec)
}

// Surroundings are the addresses around a pod.
type Surroundings struct {
	// Hosts are the addresses of the node, which is this host.
	Hosts []string
	// Network is the namespace of the other host, at the address Outside.
	Network, Outside string
	// Prober is the program, which the guest runs as prober, beside sh and ip.
	Prober string
}

// Run runs the cases. The gate has one guest, which tries what needs no other.
func Run(t *testing.T, h Harness) {
	t.Helper()
	framework.RequireRoot(t, "make a network namespace, which is another host")
	w := newWorld(t, h)
	t.Run("allow", func(t *testing.T) { w.tryWith(t, "", Egress{}) })
	if !h.IsMachine || h.PreparePod != nil || !tier.IsFull() {
		return
	}
	t.Run("deny", func(t *testing.T) { w.tryWith(t, "deny", Egress{Deny: true}) })
	t.Run("denied", func(t *testing.T) { w.tryWith(t, "denied", Egress{Denied: []string{w.outside + "/32"}}) })
}

// world is the host and its surroundings.
type world struct {
	Harness

	registry, image string
	// prober is the program, and network the namespace of the other host, at the address outside.
	prober, network, outside string
	// hosts are the addresses of this host without loopback, and own the listeners of the test, one at each of them.
	// Another listener has the port of every address, and own6 are its addresses of IPv6.
	hosts, own, own6 []string
	port             string

	mu    sync.Mutex
	heard []string // by those listeners
}

// theHost is the answer of the host's listeners.
const theHost = "the host"

func newWorld(t *testing.T, h Harness) *world {
	t.Helper()
	w := &world{Harness: h, registry: framework.NewRegistry(t, nil), prober: filepath.Join(framework.ShortTempDir(t), "prober")}
	assert.NoError(t, framework.BuildStatic(w.prober, "test/prober"))
	busyBox, err := framework.BusyBoxLayer(t.Context())
	assert.NoError(t, err)
	layer := framework.TarOf(t, "bin/prober", []byte(framework.ReadFile(t, w.prober)))
	image, err := framework.LayersImage(v1.Config{Entrypoint: []string{"/bin/prober", "serve"}, Env: []string{"PATH=/bin"}}, busyBox, layer)
	assert.NoError(t, err)
	w.image = w.registry + "/prober:1"
	framework.PushImage(t, w.image, image)
	w.network, w.outside = framework.NewNetwork(t, 18)
	w.serveOutside(t)
	w.serveHost(t)
	return w
}

// serveOutside answers on the other host.
func (w *world) serveOutside(t *testing.T) {
	t.Helper()
	server := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "exec", w.network, w.prober, "serve", "outside") //nolint:gosec // a program of this repository
	assert.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	at := net.JoinHostPort(w.outside, "80")
	assert.Eventually(t, "the other host answers", func(t testing.TB) error {
		got := tryFrom(t, []string{w.prober}, target{Protocol: "tcp", Address: at}, target{Protocol: "udp", Address: at})
		assert.True(t, got[0] == "outside" && got[1] == "outside", "it answers %q", got)
		return nil
	})
}

// otherTests is where networks of tests are, which come and go.
var otherTests = netip.MustParsePrefix("198.18.0.0/15")

// serveHost listens at all addresses of the host together, and at each of them.
func (w *world) serveHost(t *testing.T) {
	t.Helper()
	w.port = w.listen(t, "[::]:0")
	all, err := net.InterfaceAddrs()
	assert.NoError(t, err)
	var targets []target
	for _, a := range all {
		ip := netip.MustParsePrefix(a.String()).Addr()
		switch {
		case ip.IsLoopback() || ip.IsLinkLocalUnicast() || otherTests.Contains(ip) && ip != w.link():
		case ip.Is6():
			w.own6 = append(w.own6, net.JoinHostPort(ip.String(), w.port))
		default:
			w.hosts = append(w.hosts, ip.String())
			w.own = append(w.own, net.JoinHostPort(ip.String(), w.listen(t, net.JoinHostPort(ip.String(), "0"))))
			targets = append(targets, target{Protocol: "tcp", Address: net.JoinHostPort(ip.String(), w.port)})
		}
	}
	for _, at := range slices.Concat(w.own, w.own6) {
		targets = append(targets, target{Protocol: "tcp", Address: at}, target{Protocol: "udp", Address: at})
	}
	for i, got := range tryFrom(t, []string{w.prober}, targets...) {
		assert.Require(t, got == theHost, "before the test, %s to %s of the host: %s", targets[i].Protocol, targets[i].Address, got)
	}
	w.heard = nil
}

// link is this host's address on the way to the other.
func (w *world) link() netip.Addr { return netip.MustParseAddr(w.outside).Prev() }

// listen answers at an address by TCP and UDP, and returns the port.
func (w *world) listen(t *testing.T, address string) string {
	t.Helper()
	var listener net.Listener
	var packets net.PacketConn
	assert.Eventually(t, "a port is free for both protocols", func(t testing.TB) (err error) {
		if listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address); err != nil {
			return err
		}
		if packets, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", listener.Addr().String()); err != nil {
			_ = listener.Close()
		}
		return err
	})
	t.Cleanup(func() { _, _ = listener.Close(), packets.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.noteSource("tcp", conn.RemoteAddr())
			go func() {
				_, _ = conn.Read(make([]byte, 1))
				_, _ = conn.Write([]byte(theHost))
				_ = conn.Close()
			}()
		}
	}()
	go func() {
		packet := make([]byte, 1500)
		for {
			_, from, err := packets.ReadFrom(packet)
			if err != nil {
				return
			}
			w.noteSource("udp", from)
			_, _ = packets.WriteTo([]byte(theHost), from)
		}
	}()
	return fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
}

func (w *world) noteSource(protocol string, from net.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, fmt.Sprintf("%s from %s", protocol, from))
}

// target is a Target of test/prober.
type target struct {
	Protocol, Address string
	MaySilent         bool
	Insists           bool
}

// tryFrom returns what comes of targets that a program of this host tries.
func tryFrom(t testing.TB, prober []string, targets ...target) (results []string) {
	t.Helper()
	input, err := json.Marshal(targets)
	assert.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), prober[0], append(prober[1:], "try")...) //nolint:gosec // a program of this repository
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	assert.NoError(t, errors.Join(err, json.Unmarshal(out, &results)))
	return results
}

// guest is a server.
type guest struct {
	*world
	driver driver.Driver
	spec   driver.ServerSpec
	server driver.Server
	// address and gateway are the guest's.
	address, gateway string
}

// newGuest boots a server that answers with its name.
func (w *world) newGuest(t *testing.T, d driver.Driver, namespace, name string) *guest {
	t.Helper()
	g := &guest{world: w, driver: d, spec: driver.ServerSpec{
		Target: driver.Target{UID: uuid.NewUUID(), Epoch: 1}, Namespace: namespace, Name: name,
		Power: driver.PowerOn, RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 128 << 20,
		Ephemeral: w.IsMachine, Image: driver.Image{Source: w.image}, Args: []string{name}, Ports: w.ports(t),
	}}
	if w.PreparePod != nil {
		w.PreparePod(t, Surroundings{w.hosts, w.network, w.outside, w.prober}, &g.spec)
	}
	t.Cleanup(func() {
		assert.Eventually(t, name+" is gone", func(t testing.TB) error {
			err := d.Delete(context.WithoutCancel(t.Context()), g.spec.Target, false)
			if errors.Is(err, driver.ErrNotFound) {
				return nil
			}
			return errors.Join(err, errors.New("it is being removed"))
		})
	})
	assert.Eventually(t, name+" runs", func(t testing.TB) (err error) {
		g.server, err = d.Ensure(t.Context(), g.spec)
		assert.True(t, err != nil || g.server.State == driver.StateRunning, "it is %s: %s", g.server.State, g.server.Progress)
		return err
	})
	assert.Eventually(t, name+" answers at its port", func(t testing.TB) error {
		assert.Equal(t, "it answers", tryFrom(t, []string{w.prober}, target{Protocol: "tcp", Address: g.hostPort(t, "http", "127.0.0.1")})[0], name)
		return nil
	})
	g.address, g.gateway, _ = strings.Cut(g.run(t, "", "prober", "addresses"), " ")
	return g
}

// run runs a command in the guest, and returns what it prints.
func (g *guest) run(t testing.TB, stdin string, command ...string) string {
	t.Helper()
	executor, ok := driver.As[driver.Executor](g.driver)
	assert.Require(t, ok, "the driver does not implement driver.Executor")
	var out, errs bytes.Buffer
	code, err := executor.Exec(t.Context(), g.spec.UID, terminal.Command{Args: command, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
	assert.Require(t, err == nil && code == 0, "%q ends with %d, %v, and prints %s", command, code, err, errs.String())
	return strings.TrimSpace(out.String())
}

// try returns what comes of targets that the guest tries.
func (g *guest) try(t testing.TB, targets ...target) (results []string) {
	t.Helper()
	input, err := json.Marshal(targets)
	assert.NoError(t, errors.Join(err, json.Unmarshal([]byte(g.run(t, string(input), "prober", "try")), &results)))
	return results
}

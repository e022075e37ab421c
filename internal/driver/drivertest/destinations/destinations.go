// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package destinations has the tests of which addresses a guest can reach, and who can reach the guest. The program
// test/prober in the guest sends to every kind of destination, and the test sends to every port of the guest.
//
// Start with the tables outward and inward in tables.go, which have the expected results for each driver, and with Run.
// Packets go only to this host and to network namespaces that the test makes, unless a driver is broken.
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

// Egress has the operator's policy for connections out of guests: deny all, or the networks Denied.
type Egress struct {
	Deny   bool
	Denied []string
}

// Harness describes a driver to the cases.
type Harness struct {
	// Open returns a driver for a new engine, which pulls images by tag from a registry without TLS on this host.
	Open func(t *testing.T, registry string, egress Egress) driver.Driver
	// IsMachine is set if a server is a virtual machine. Its network is then Drover's gateway in user space (package edge).
	IsMachine bool
	// PreparePod is set if a server is a machine in a pod, which cannot boot a container image. PreparePod connects the
	// pod's network, and sets an image that has sh, ip and prober, and runs prober with the spec's arguments.
	PreparePod func(t *testing.T, surroundings Surroundings, spec *driver.ServerSpec)
}

// Surroundings are the hosts around a pod.
type Surroundings struct {
	// Hosts are the addresses of the node, which is this host.
	Hosts []string
	// Network is the network namespace that acts as another host. Outside is its address.
	Network, Outside string
	// Prober is the path of the program test/prober on this host.
	Prober string
}

// Run runs the tests. Outside the full tier, the test of a machine has a single guest and skips the rows about peers.
func Run(t *testing.T, h Harness) {
	t.Helper()
	framework.RequireRoot(t, "make a network namespace that acts as another host")
	b := newTestbed(t, h)
	t.Run("allow", func(t *testing.T) { b.testPolicy(t, "", Egress{}) })
	if !h.IsMachine || h.PreparePod != nil || !tier.IsFull() {
		return
	}
	t.Run("deny", func(t *testing.T) { b.testPolicy(t, "deny", Egress{Deny: true}) })
	t.Run("denied", func(t *testing.T) { b.testPolicy(t, "denied", Egress{Denied: []string{b.outside + "/32"}}) })
}

// testbed has this host's listeners and the other host, which guests try to reach.
type testbed struct {
	Harness

	registry, image string
	// prober is the path of test/prober. network is the network namespace that acts as another host, at address outside.
	prober, network, outside string
	// hosts are this host's IPv4 addresses without loopback. The test has separate listeners at each of them, and one
	// common listener with commonPort at all addresses. common6 are the IPv6 addresses of the common listener.
	hosts, separate, common6 []string
	commonPort               string

	mu       sync.Mutex
	received []string // protocol and sender of all that reached this host's listeners
}

// theHost is the answer of this host's listeners.
const theHost = "the host"

func newTestbed(t *testing.T, h Harness) *testbed {
	t.Helper()
	b := &testbed{Harness: h, registry: framework.NewRegistry(t, nil), prober: filepath.Join(framework.ShortTempDir(t), "prober")}
	assert.NoError(t, framework.BuildStatic(b.prober, "test/prober"))
	busyBox, err := framework.BusyBoxLayer(t.Context())
	assert.NoError(t, err)
	layer := framework.TarOf(t, "bin/prober", []byte(framework.ReadFile(t, b.prober)))
	image, err := framework.LayersImage(v1.Config{Entrypoint: []string{"/bin/prober", "serve"}, Env: []string{"PATH=/bin"}}, busyBox, layer)
	assert.NoError(t, err)
	b.image = b.registry + "/prober:1"
	framework.PushImage(t, b.image, image)
	b.network, b.outside = framework.NewNetwork(t, 18)
	b.serveOutside(t)
	b.serveHost(t)
	return b
}

// serveOutside runs a server in the network namespace that acts as another host.
func (b *testbed) serveOutside(t *testing.T) {
	t.Helper()
	server := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "exec", b.network, b.prober, "serve", "outside") //nolint:gosec // a program of this repository
	assert.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	address := net.JoinHostPort(b.outside, "80")
	assert.Eventually(t, "the other host answers", func(t testing.TB) error {
		got := runProber(t, []string{b.prober}, target{Protocol: "tcp", Address: address}, target{Protocol: "udp", Address: address})
		assert.True(t, got[0] == "outside" && got[1] == "outside", "the results are %q", got)
		return nil
	})
}

// testNetworks has the addresses of the networks that tests add to and remove from this host.
var testNetworks = netip.MustParsePrefix("198.18.0.0/15")

// serveHost opens a listener for all addresses of this host together, and one for each address.
func (b *testbed) serveHost(t *testing.T) {
	t.Helper()
	b.commonPort = b.listen(t, "[::]:0")
	all, err := net.InterfaceAddrs()
	assert.NoError(t, err)
	var targets []target
	for _, a := range all {
		ip := netip.MustParsePrefix(a.String()).Addr()
		switch {
		case ip.IsLoopback() || ip.IsLinkLocalUnicast() || (testNetworks.Contains(ip) && ip != b.linkAddress()):
		case ip.Is6():
			b.common6 = append(b.common6, net.JoinHostPort(ip.String(), b.commonPort))
		default:
			b.hosts = append(b.hosts, ip.String())
			b.separate = append(b.separate, net.JoinHostPort(ip.String(), b.listen(t, net.JoinHostPort(ip.String(), "0"))))
			targets = append(targets, target{Protocol: "tcp", Address: net.JoinHostPort(ip.String(), b.commonPort)})
		}
	}
	for _, address := range slices.Concat(b.separate, b.common6) {
		targets = append(targets, target{Protocol: "tcp", Address: address}, target{Protocol: "udp", Address: address})
	}
	for i, got := range runProber(t, []string{b.prober}, targets...) {
		assert.Require(t, got == theHost, "before the test, %s to %s of the host: %s", targets[i].Protocol, targets[i].Address, got)
	}
	b.received = nil
}

// linkAddress returns this host's address in the network that it shares with the other host.
func (b *testbed) linkAddress() netip.Addr { return netip.MustParseAddr(b.outside).Prev() }

// listen answers TCP and UDP at an address, and returns the port.
func (b *testbed) listen(t *testing.T, address string) string {
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
			b.recordSender("tcp", conn.RemoteAddr())
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
			b.recordSender("udp", from)
			_, _ = packets.WriteTo([]byte(theHost), from)
		}
	}()
	return fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
}

func (b *testbed) recordSender(protocol string, sender net.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received = append(b.received, fmt.Sprintf("%s from %s", protocol, sender))
}

// target is the type Target of test/prober.
type target struct {
	Protocol, Address string
	ExpectSilence     bool
	SendUntilReset    bool
}

// runProber runs test/prober on this host by a command, and returns its result for each target.
func runProber(t testing.TB, command []string, targets ...target) (results []string) {
	t.Helper()
	input, err := json.Marshal(targets)
	assert.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], "try")...) //nolint:gosec // a program of this repository
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	assert.NoError(t, errors.Join(err, json.Unmarshal(out, &results)))
	return results
}

// guest is a server that runs test/prober.
type guest struct {
	*testbed
	driver driver.Driver
	spec   driver.ServerSpec
	server driver.Server
	// address and gateway as the guest itself has configured them.
	address, gateway string
}

// newGuest boots a guest that answers with its name at port 80.
func (b *testbed) newGuest(t *testing.T, d driver.Driver, namespace, name string) *guest {
	t.Helper()
	g := &guest{testbed: b, driver: d, spec: driver.ServerSpec{
		Target: driver.Target{UID: uuid.NewUUID(), Epoch: 1}, Namespace: namespace, Name: name,
		Power: driver.PowerOn, RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 128 << 20,
		Ephemeral: b.IsMachine, Image: driver.Image{Source: b.image}, Args: []string{name}, Ports: newPorts(t),
	}}
	if b.PreparePod != nil {
		b.PreparePod(t, Surroundings{b.hosts, b.network, b.outside, b.prober}, &g.spec)
	}
	t.Cleanup(func() {
		assert.Eventually(t, name+" is gone", func(t testing.TB) error {
			err := d.Delete(context.WithoutCancel(t.Context()), g.spec.Target, false)
			if errors.Is(err, driver.ErrNotFound) {
				return nil
			}
			return errors.Join(err, errors.New("the guest is being removed"))
		})
	})
	assert.Eventually(t, name+" runs", func(t testing.TB) (err error) {
		g.server, err = d.Ensure(t.Context(), g.spec)
		assert.True(t, err != nil || g.server.State == driver.StateRunning, "the guest's state is %s: %s", g.server.State, g.server.Progress)
		return err
	})
	assert.Eventually(t, name+" answers at its port", func(t testing.TB) error {
		assert.Equal(t, "the answer", runProber(t, []string{b.prober}, target{Protocol: "tcp", Address: g.portAddress(t, "http", "127.0.0.1")})[0], name)
		return nil
	})
	g.address, g.gateway, _ = strings.Cut(g.runCommand(t, "", "prober", "addresses"), " ")
	return g
}

// runCommand runs a command in the guest, and returns its standard output.
func (g *guest) runCommand(t testing.TB, stdin string, command ...string) string {
	t.Helper()
	executor, ok := driver.As[driver.Executor](g.driver)
	assert.Require(t, ok, "the driver does not implement driver.Executor")
	var out, errs bytes.Buffer
	code, err := executor.Exec(t.Context(), g.spec.UID, terminal.Command{Args: command, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
	assert.Require(t, err == nil && code == 0, "the guest's command %q exits with %d, %v, and prints %s", command, code, err, errs.String())
	return strings.TrimSpace(out.String())
}

// runProber runs test/prober in the guest, and returns its result for each target.
func (g *guest) runProber(t testing.TB, targets ...target) (results []string) {
	t.Helper()
	input, err := json.Marshal(targets)
	assert.NoError(t, errors.Join(err, json.Unmarshal([]byte(g.runCommand(t, string(input), "prober", "try")), &results)))
	return results
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// networkGuest is one of several machines.
type networkGuest struct {
	*linuxGuest

	name string
}

func (e *engine) networkGuest(t *testing.T, d *Driver, namespace, name string) *networkGuest {
	t.Helper()
	g := &networkGuest{&linuxGuest{e: e, d: d, spec: e.linuxSpec(t)}, name}
	g.spec.Namespace, g.spec.Name, g.spec.MemoryBytes = namespace, name, 128<<20
	g.spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "echo", Protocol: "TCP", Port: 7}}
	g.server = reach(t, d, g.spec, driver.StateRunning)
	g.port = g.server.Ports[0].HostPort
	return g
}

// get returns what the guest gets from a URL.
func (g *networkGuest) get(t testing.TB, address string) (string, error) {
	t.Helper()
	return g.tryAsk(t, "/get?url="+url.QueryEscape(address))
}

// TestNetwork tries the ways from a guest to others: machines of its namespace answer by name, and neither machines of
// another namespace nor anything of the host do. Machines connect while no Drover runs. A broker that was killed
// is replaced, and connections stay. A port comes and goes while the guest runs, and so does its supervisor.
func TestNetwork(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o, now := e.options(), framework.NewFakeClock(time.Now())
	o.Clock = now
	d := openWith(t, o)
	watching, leave := context.WithCancel(t.Context())
	events, err := d.Watch(watching)
	assert.NoError(t, err)
	a, b, c := e.networkGuest(t, d, "ns", "a"), e.networkGuest(t, d, "ns", "b"), e.networkGuest(t, d, "other", "c")
	for _, g := range []*networkGuest{a, b, c} {
		waitPrinted(t, g.d.Host.InstanceOf(g.spec.UID), "drover linux guest 1 is up")
		assert.Eventually(t, g.name+" answers", func(t testing.TB) error { return probe(t, d, g.spec, 80) })
	}
	addressOf := func(g *networkGuest) string { return g.address(t).Addr().String() }
	for _, host := range []string{"b", "b.ns", "b.ns.drover.internal", addressOf(b)} {
		assert.Eventually(t, "a reaches b by "+host, func(t testing.TB) error {
			now.Step(instance.SuperviseEvery / 50) // for a follower that tries again
			text, err := a.get(t, "http://"+host+"/clock")
			assert.True(t, err != nil || text != "", "it answers nothing")
			return err
		})
	}
	assert.Check(t, "a pings b", func(t testing.TB) error { return assert.ErrorOf(a.tryAsk(t, "/ping?to=b")) })
	checkBroker(t, d, now, a, func() {
		leave()
		for range events { // until nobody follows the machines any more
		}
	})
	host := serveHost(t)
	for _, target := range []string{addressOf(c), hostAddress(t)} {
		if _, err := a.tryAsk(t, "/ping?to="+target); err == nil {
			t.Errorf("a pings %s", target)
		}
	}
	gateway := a.address(t).Masked().Addr().Next().String()
	for _, target := range []string{
		"c", "c.other", addressOf(c), // of another namespace
		"10.213.255.254",                                                       // an address of no machine
		"127.0.0.1:" + host, gateway + ":" + host, hostAddress(t) + ":" + host, // the host
		fmt.Sprintf("%s:%d", hostAddress(t), b.port), // its ports, too
		"169.254.169.254", // a cloud's
	} {
		if text, err := a.get(t, "http://"+target+"/clock"); err == nil {
			t.Errorf("a gets %q from %s", text, target)
		}
	}
	checkStatistics(t, d, a)

	spec := a.spec
	spec.Ports = nil
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, len(s.Ports) == 0 && s.Run == a.server.Run, "without ports it is %+v", s)
	_, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", a.port))
	assert.ErrorIs(t, "a port that was taken away", err, unix.ECONNREFUSED)
	a.server = reach(t, d, a.spec, driver.StateRunning)
	a.port = a.server.Ports[0].HostPort
	assert.Check(t, "the port is back", func(t testing.TB) error { return assert.ErrorOf(a.get(t, "http://b/clock")) })
	checkReplacement(t, now, a, b)
}

// checkReplacement checks that connections break when a machine's supervisor is killed, that the guest runs on, and
// that new connections work in every direction once there is another supervisor.
func checkReplacement(t *testing.T, now *testingclock.FakeClock, a, b *networkGuest) {
	t.Helper()
	broken := b.download(t)
	before := supervisorOf(t, b.d.Host.InstanceOf(b.spec.UID)).PID
	signalSupervisor(t, b.d.Host.InstanceOf(b.spec.UID), unix.SIGKILL)
	<-broken
	began := now.Now()
	for what, try := range map[string]func(t testing.TB) (string, error){
		"the port of b answers": func(t testing.TB) (string, error) { return b.tryAsk(t, "/") },
		"b reaches a":           func(t testing.TB) (string, error) { return b.get(t, "http://a/clock") },
		"a reaches b":           func(t testing.TB) (string, error) { return a.get(t, "http://b/clock") },
	} {
		assert.Eventually(t, what, func(t testing.TB) error {
			now.Step(instance.SuperviseEvery / 50)
			return assert.ErrorOf(try(t))
		})
	}
	took := now.Since(began)
	assert.True(t, took < instance.SuperviseEvery, "b has its network after %s", took)
	after := supervisorOf(t, b.d.Host.InstanceOf(b.spec.UID)).PID
	assert.True(t, after != before, "the supervisor is still process %d", after)
	s := reach(t, b.d, b.spec, driver.StateRunning)
	assert.True(t, s.Run == b.server.Run, "b is %+v, and was in run %s", s, b.server.Run)
}

// download begins an endless download from the guest's port. The channel is closed when its connection breaks.
func (g *networkGuest) download(t *testing.T) (broken <-chan struct{}) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", g.server.Ports[1].HostPort))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() { // the guest sends back what it gets
		for {
			if _, err := conn.Write(make([]byte, 4<<10)); err != nil {
				return
			}
		}
	}()
	_, err = io.CopyN(io.Discard, conn, 256<<10)
	assert.NoError(t, err)
	result := make(chan struct{})
	go func() {
		defer close(result)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return result
}

// checkStatistics checks the figures of a, which has tried to reach a cloud's service last.
func checkStatistics(t *testing.T, d *Driver, a *networkGuest) {
	t.Helper()
	n, err := d.NetworkStatistics(t.Context(), a.spec.UID)
	assert.NoError(t, err)
	assert.True(t, n.PacketsIn != 0 && n.BytesIn > n.PacketsIn && n.PacketsOut != 0 && n.Refused >= int64(len(n.LastRefused)), "the figures of a are %+v", n)
	if last := n.LastRefused[len(n.LastRefused)-1]; last.Protocol != "tcp" || last.Target != "169.254.169.254:80" || last.Reason != report.RefusedSpecial || last.Count < 1 {
		t.Errorf("the last that was refused is %+v", last)
	}
}

// checkBroker checks that a, which knows b, goes on to connect to it once leave has ended all that Drover does, that
// their connections survive the broker, and that the next Drover replaces that.
func checkBroker(t *testing.T, d *Driver, now *testingclock.FakeClock, a *networkGuest, leave func()) {
	t.Helper()
	const kept = "/get?keep=1&url=http://b/clock"
	_, err := a.tryAsk(t, kept)
	assert.NoError(t, err)
	leave()
	_, err = a.get(t, "http://b/clock")
	assert.NoError(t, err)
	killBroker(t, d)
	if text, err := a.get(t, "http://b/clock"); err == nil {
		t.Errorf("a gets %q from b without a broker", text)
	}
	_, err = a.tryAsk(t, kept)
	assert.NoError(t, err)
	_, err = d.Watch(t.Context())
	assert.NoError(t, err)
	assert.Eventually(t, "a reaches b by another broker", func(t testing.TB) error {
		now.Step(instance.SuperviseEvery / 50)
		return assert.ErrorOf(a.get(t, "http://b/clock"))
	})
}

// TestEgressFlags checks that guests ask the resolvers that the operator names, and that a machine which runs learns of
// other flags once another Drover leads.
func TestEgressFlags(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	var asked <-chan string
	o.Resolvers, asked = resolver(t)
	d := openWith(t, o)
	watching, leave := context.WithCancel(t.Context())
	events, err := d.Watch(watching)
	assert.NoError(t, err)
	a := e.networkGuest(t, d, "ns", "a")
	assert.Eventually(t, "a answers", func(t testing.TB) error { return probe(t, d, a.spec, 80) })
	if text, err := a.get(t, "http://www.example.test/"); err == nil {
		t.Errorf("a gets %q from the host", text)
	}
	assert.Equal(t, "the resolver was asked for", <-asked, "www.example.test.")
	leave()
	for range events { // until nobody follows the machine any more
	}

	o.Egress = EgressDeny
	d = openWith(t, o)
	s := listAnswering(t, d, a.spec.UID)[0]
	assert.True(t, s.NeedsEnsure, "it is %+v", s)
	reach(t, d, a.spec, driver.StateRunning)
	assert.Eventually(t, "no name of the outside is resolved", func(t testing.TB) error {
		_, _ = a.get(t, "http://www.example.test/")
		n, err := d.NetworkStatistics(t.Context(), a.spec.UID)
		assert.True(t, err != nil || slices.ContainsFunc(n.LastRefused, func(r report.Refusal) bool { return r.Reason == report.RefusedNoEgress }),
			"refused were %+v", n.LastRefused)
		return err
	})
}

// resolver answers that every name has a link-local address, and sends the names that it was asked for.
func resolver(t *testing.T) (addresses []string, asked <-chan string) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	names := make(chan string, 100)
	go func() {
		for packet := make([]byte, 1<<10); ; {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			names <- q.Name.String()
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
					Body:   &dnsmessage.AResource{A: [4]byte{169, 254, 9, 9}},
				}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return []string{conn.LocalAddr().String()}, names
}

// TestHaltedBroker checks that a broker that is halted is replaced.
func TestHaltedBroker(t *testing.T) {
	tier.Full(t, "a broker that does not answer is found within 20 seconds; TestNetwork replaces one that was killed")
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	_, err := d.Watch(t.Context())
	assert.NoError(t, err)
	a, b := e.networkGuest(t, d, "ns", "a"), e.networkGuest(t, d, "ns", "b")
	for _, g := range []*networkGuest{a, b} {
		assert.Eventually(t, g.name+" answers", func(t testing.TB) error { return probe(t, d, g.spec, 80) })
	}
	reaches := func(t testing.TB) error { return assert.ErrorOf(a.get(t, "http://b/clock")) }
	assert.Eventually(t, "a reaches b", reaches)
	withBroker(t, d, func(pid int) { assert.NoError(t, unix.Kill(pid, unix.SIGSTOP)) })
	assert.True(t, reaches(t) != nil, "a reaches b by a broker that is halted")
	assert.Eventually(t, "a reaches b by another broker", reaches)
}

// killBroker kills the process that connects the driver's machines.
func killBroker(t *testing.T, d *Driver) {
	t.Helper()
	withBroker(t, d, func(pid int) { assert.NoError(t, proc.Kill(t.Context(), pid, func(int) bool { return true })) })
}

// withBroker calls do with the process that connects the driver's machines.
func withBroker(t *testing.T, d *Driver, do func(pid int)) {
	t.Helper()
	found := 0
	for _, pid := range proc.IDs() {
		dir, err := os.Readlink(proc.Path(pid, "cwd"))
		if err == nil && dir == d.Host.Broker.Folder.Path {
			user, _, err := proc.UserOf(pid)
			assert.NoError(t, err)
			assert.True(t, user != 0 && (!confine.FiltersCalls() || isFiltered(t, pid)), "the broker is not confined: it has the user %d", user)
			do(pid)
			found++
		}
	}
	assert.Equal(t, "brokers run", found, 1)
}

// isFiltered reports whether the kernel filters the system calls of a process.
func isFiltered(t *testing.T, pid int) bool {
	t.Helper()
	status, err := os.ReadFile(proc.Path(pid, "status"))
	assert.NoError(t, err)
	return strings.Contains(string(status), "Seccomp:\t2\n")
}

// serveHost serves on all addresses of the host, and returns the port.
func serveHost(t *testing.T) string {
	t.Helper()
	listener := framework.Listen(t, "tcp4", "0.0.0.0:0")
	server := &http.Server{ //nolint:gosec // of a test
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the host") }),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return fmt.Sprint(framework.PortOf(listener))
}

// hostAddress is an address of the host that others may reach, 127.0.0.1 for a host without any.
func hostAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	assert.NoError(t, err)
	for _, a := range all {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil && !ip.IsLoopback() {
			return ip.String()
		}
	}
	return "127.0.0.1"
}

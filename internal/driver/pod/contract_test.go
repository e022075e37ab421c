// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

func TestContract(t *testing.T) {
	t.Parallel()
	e := newContractEngine(t)
	e.engine = &podtest.Engine{
		Cluster: shared, Kube: e.kube,
		Open: openWithStreams, Kill: e.kill,
	}
	h := e.engine.Harness(driver.ServerSpec{
		CPUMilli: 1000, MemoryBytes: 32 << 20, RootDiskBytes: 1 << 20, GracePeriod: 30 * time.Second,
		Image: driver.Image{Source: "oci://registry.example/boot:1"}, StorageClassName: new(growing),
	})
	h.OtherImage = "oci://registry.example/boot:2"
	h.Guest = e.guestActions(h)
	for _, name := range []string{"LogsTail", "LogsFollow"} {
		h.Skips[name] = "the kubelet has them: TestPodContract of test/cluster checks that"
	}
	h.OutOfBand.Exit = e.exit
	h.OutOfBand.Kill = func(t *testing.T, s driver.Server) { t.Helper(); e.exit(t, s, podtest.CodeKilled) }
	h.OutOfBand.Stop = func(t *testing.T, s driver.Server) { t.Helper(); e.exit(t, s, 0) }
	h.OutOfBand.BurnCPU = func(_ *testing.T, s driver.Server) {
		e.change(s, func(m *simulatedMachine) { m.burnsSince = time.Now() })
	}
	h.OutOfBand.IgnoreStop = func(_ *testing.T, s driver.Server) { e.change(s, func(m *simulatedMachine) { m.isStubborn = true }) }
	drivertest.Run(t, h)
}

// contractEngine is a world of all namespaces, whose kubelet runs simulated machines. It cares for no
// servers of other tests.
type contractEngine struct {
	*world

	engine *podtest.Engine

	mu        sync.Mutex
	machines  map[types.UID]*simulatedMachine // by pod
	addresses int
}

func newContractEngine(t *testing.T) *contractEngine {
	t.Helper()
	w := newWorld(t)
	all := &world{kube: w.kube}
	e := &contractEngine{world: all, machines: map[types.UID]*simulatedMachine{}}
	e.kubelet = startKubelet(t, all)
	e.kubelet.Lock()
	defer e.kubelet.Unlock()
	e.kubelet.Begin, e.kubelet.RequestStop = e.begin, e.requestStop
	return e
}

// exit ends the machine of a server by itself.
func (e *contractEngine) exit(t *testing.T, s driver.Server, code int) {
	t.Helper()
	e.kubelet.Lock()
	defer e.kubelet.Unlock()
	p := e.engine.PodOf(t, s)
	_, _ = e.kubelet.Running[p.UID]()
	if err := e.kubelet.EndPod(t.Context(), p, int32(code), ""); err != nil { //nolint:gosec // an exit code
		t.Fatal(err)
	}
}

// kill ends the machine of a pod, if it runs. Nothing reports its end.
func (e *contractEngine) kill(_ *testing.T, p *corev1.Pod) {
	e.kubelet.Lock()
	defer e.kubelet.Unlock()
	if stop, ok := e.kubelet.Running[p.UID]; ok {
		_, _ = stop()
		delete(e.kubelet.Running, p.UID)
	}
}

// change changes the machine of a server.
func (e *contractEngine) change(s driver.Server, do func(*simulatedMachine)) {
	e.mu.Lock()
	m := e.machines[types.UID(s.Run)]
	e.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	do(m)
}

// requestStop reports whether a guest ignores the request to stop, since it is stubborn or paused.
func (e *contractEngine) requestStop(p *corev1.Pod) bool {
	e.mu.Lock()
	m := e.machines[p.UID]
	e.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isStubborn || m.isPaused
}

// begin starts a simulated machine, which listens at a separate address.
func (e *contractEngine) begin(p *corev1.Pod) (string, func() (int32, string), error) {
	secret, err := e.kube.CoreV1().Secrets(p.Namespace).Get(context.Background(), objects.SecretOf(p), metav1.GetOptions{})
	if err != nil {
		return "", nil, err
	}
	at, ok := objects.ControlPortOf(p)
	if !ok {
		return "", nil, fmt.Errorf("pod %s lacks a control port", p.Name)
	}
	listener, address, err := e.listen(at)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &simulatedMachine{startedAt: time.Now(), guest: newSimulatedGuest()}
	server, err := control.NewServer(ctx, control.Credentials{
		CA: secret.Data[control.CAFile], Cert: secret.Data[control.CertFile], Key: secret.Data[control.KeyFile], GuestCA: secret.Data[control.GuestCAFile],
	}, m, m.guest)
	if err == nil && slices.ContainsFunc(p.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.ContainerPort == echoPort }) {
		err = listenEcho(ctx, address)
	}
	if err != nil {
		cancel()
		return "", nil, errors.Join(err, listener.Close())
	}
	go func() { _ = server.Serve(outsideListener{listener}) }()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.machines[p.UID] = m
	return address, func() (int32, string) { m.guest.end(); cancel(); return 0, "" }, nil
}

// listen listens at the next loopback address that is free.
func (e *contractEngine) listen(port int32) (listener net.Listener, address string, err error) {
	for range 100 {
		e.mu.Lock()
		e.addresses++
		n := e.addresses
		e.mu.Unlock()
		address = fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, n/250, n%250+1)
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
		if err == nil {
			break
		}
	}
	return listener, address, err
}

// outsideListener accepts connections as if they came from another host: a machine accepts no
// others.
type outsideListener struct{ net.Listener }

func (l outsideListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return outsideConn{c}, err
}

type outsideConn struct{ net.Conn }

func (outsideConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(podtest.Unreachable)} }

// simulatedMachine is the machine of a pod as far as the controller sees it. TestChannel has a real
// one.
type simulatedMachine struct {
	startedAt time.Time
	guest     *simulatedGuest

	mu                   sync.Mutex
	isPaused, isStubborn bool
	burnsSince           time.Time
}

func (m *simulatedMachine) Status(context.Context) (control.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := control.Status{
		State: control.StateRunning, Accelerator: driver.AccelTCG, StartedAt: m.startedAt,
		CPUNanoseconds: int64(time.Millisecond), MemoryBytes: 8 << 20,
	}
	if m.isPaused {
		s.State = control.StatePaused
	}
	if !m.burnsSince.IsZero() {
		s.CPUNanoseconds += int64(time.Since(m.burnsSince))
	}
	return s, nil
}

func (m *simulatedMachine) Pause(context.Context) error  { return m.setPaused(true) }
func (m *simulatedMachine) Resume(context.Context) error { return m.setPaused(false) }

func (m *simulatedMachine) setPaused(paused bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isPaused = paused
	return nil
}

func (*simulatedMachine) Probe(context.Context, int32) error { return failure.ErrNoAnswer }
func (*simulatedMachine) Grow(_ context.Context, sizes control.Sizes) (control.Sizes, error) {
	return sizes, nil
}

// SetGracePeriod implements control.Machine.
func (*simulatedMachine) SetGracePeriod(context.Context, time.Duration) error { return nil }

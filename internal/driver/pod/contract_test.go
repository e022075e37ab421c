// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/framework"
)

// lossTimeout is the time of a call while the API server cannot be reached.
const lossTimeout = 2 * time.Second

func TestContract(t *testing.T) {
	t.Parallel()
	e := newContractEngine(t)
	skips := map[string]string{
		"PausedByHand":         "no event tells of it: TestPausedByOthers checks that samples do",
		"StartedByHand":        "a pod that has ended never starts again",
		"FenceOutlivesServers": "epochs are on objects, and none is left: the VirtualMachine's status says what is made",
		"FenceUnderLoad":       "an Ensure that finds nothing to change leaves no epoch",
	}
	for _, c := range streams.Cases {
		skips[c.Name] = "the driver has no streams"
	}
	drivertest.Run(t, drivertest.Harness{
		Open: func(t *testing.T, id string) driver.Driver {
			t.Helper()
			return e.recorded(openAs(t, shared.Config, id, DefaultCallTimeout))
		},
		// The PVC owns the pods: the cluster would collect those of a VirtualMachine that it
		// does not have.
		Spec: func(*testing.T) driver.ServerSpec {
			return driver.ServerSpec{
				CPUMilli: 1000, MemoryBytes: 32 << 20, RootDiskBytes: 1 << 20, GracePeriod: 30 * time.Second,
				Image: driver.Image{Source: "oci://registry.example/boot:1"}, StorageClassName: new(growing), RetainOnDelete: true,
			}
		},
		OtherImage: "oci://registry.example/boot:2",
		Losable:    e.losable,
		OutOfBand: drivertest.OutOfBand{
			Kill: func(t *testing.T, s driver.Server) { t.Helper(); e.exit(t, s, codeKilled) },
			Stop: func(t *testing.T, s driver.Server) { t.Helper(); e.exit(t, s, 0) },
			Exit: e.exit, Remove: e.remove,
			BurnCPU:    func(_ *testing.T, s driver.Server) { e.change(s, func(m *playedMachine) { m.burnsSince = time.Now() }) },
			IgnoreStop: func(_ *testing.T, s driver.Server) { e.change(s, func(m *playedMachine) { m.isStubborn = true }) },
		},
		Visible: e.visible,
		FixedID: true, FencesEach: true, ResumesWatch: true,
		Timeout: patience, Skips: skips,
	})
}

// contractEngine is a world of all namespaces, whose kubelet runs played machines. It cares for no
// servers of other tests.
type contractEngine struct {
	*world

	mu         sync.Mutex
	namespaces map[string]bool
	records    map[string]record
	machines   map[types.UID]*playedMachine // by pod
	addresses  int
}

func newContractEngine(t *testing.T) *contractEngine {
	t.Helper()
	w := newWorld(t)
	all := &world{kube: w.kube, selector: LabelCluster + "," + LabelCluster + "!=" + clusterID}
	e := &contractEngine{world: all, namespaces: map[string]bool{}, records: map[string]record{}, machines: map[types.UID]*playedMachine{}}
	e.kubelet = startKubelet(t, all)
	e.kubelet.mu.Lock()
	defer e.kubelet.mu.Unlock()
	e.kubelet.begin, e.kubelet.ignoresStop = e.begin, e.ignoresStop
	return e
}

// record is what the status of a VirtualMachine has, and its version.
type record struct {
	version int
	objects []driver.Object
}

// recorded makes a driver's server the one of a VirtualMachine, as the controller does.
func (e *contractEngine) recorded(d *Driver) driver.Driver { return &recordingDriver{d, e} }

// recordingDriver keeps the record of objects, which all drivers of a cluster id share.
type recordingDriver struct {
	*Driver

	e *contractEngine
}

func (d *recordingDriver) key(uid types.UID) string { return d.ClusterID + "/" + string(uid) }

// Ensure implements driver.Driver.
func (d *recordingDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := d.e.createNamespace(spec.Namespace); err != nil {
		return driver.Server{}, driver.Errorf(driver.ErrRetry, "%w", err)
	}
	for {
		has := d.e.recordOf(d.key(spec.UID))
		spec.Objects = slices.Clone(has.objects)
		s, err := d.Driver.Ensure(ctx, spec)
		first, isFirst := errors.AsType[*driver.RecordFirstError](err)
		switch {
		case isFirst:
			d.e.write(d.key(spec.UID), has.version, first.Objects)
			continue
		case err == nil:
			d.e.write(d.key(spec.UID), has.version, s.Objects)
		}
		return s, err
	}
}

// Delete implements driver.Driver. The record goes with the VirtualMachine, once nothing is left.
func (d *recordingDriver) Delete(ctx context.Context, target driver.Target, retain bool) error {
	err := d.Driver.Delete(ctx, target, retain)
	if !errors.Is(err, driver.ErrNotFound) {
		return err
	}
	left, listErr := d.List(ctx)
	if listErr == nil && !slices.ContainsFunc(left, func(s driver.Server) bool { return s.UID == target.UID }) {
		d.e.mu.Lock()
		defer d.e.mu.Unlock()
		delete(d.e.records, d.key(target.UID))
	}
	return err
}

func (e *contractEngine) recordOf(key string) record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.records[key]
}

// write writes a record unless another controller has written it since that version.
func (e *contractEngine) write(key string, version int, objects []driver.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.records[key].version == version {
		e.records[key] = record{version + 1, objects}
	}
}

// createNamespace creates the namespace of a VirtualMachine.
func (e *contractEngine) createNamespace(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.namespaces[name] {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), framework.StepTimeout)
	defer cancel()
	_, err := e.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if _, err := e.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err // no pod can be created before
	}
	e.namespaces[name] = true
	return nil
}

// losable opens a driver whose connection to the API server can be cut.
func (e *contractEngine) losable(t *testing.T, id string) drivertest.Losable {
	t.Helper()
	proxy := shared.NewAPIProxy(t)
	config, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return drivertest.Losable{Driver: e.recorded(openAs(t, config, id, lossTimeout)), Lose: proxy.Disconnect, Restore: proxy.Restore}
}

// podOf returns the pod of a server.
func (e *contractEngine) podOf(t *testing.T, s driver.Server) *corev1.Pod {
	t.Helper()
	p, err := e.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), baseName(s.Name, s.UID), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// exit ends the machine of a server by itself.
func (e *contractEngine) exit(t *testing.T, s driver.Server, code int) {
	t.Helper()
	e.kubelet.mu.Lock()
	defer e.kubelet.mu.Unlock()
	p := e.podOf(t, s)
	_, _ = e.kubelet.stop[p.UID]()
	if err := e.kubelet.endPod(t.Context(), p, int32(code), ""); err != nil { //nolint:gosec // an exit code
		t.Fatal(err)
	}
}

// remove removes the objects of a server by hand, its finalizer first.
func (e *contractEngine) remove(t *testing.T, s driver.Server) {
	ctx := context.WithoutCancel(t.Context())
	e.kubelet.mu.Lock()
	defer e.kubelet.mu.Unlock()
	pods, name := e.kube.CoreV1().Pods(s.Namespace), baseName(s.Name, s.UID)
	p, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		if stop, ok := e.kubelet.stop[p.UID]; ok {
			_, _ = stop()
			delete(e.kubelet.stop, p.UID)
		}
		p.Finalizers = nil
		_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
		err = errors.Join(err, pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	}
	err = errors.Join(ignoreNotFound(err), ignoreNotFound(e.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{})))
	if err != nil {
		t.Error(err)
	}
}

// visible returns what users see who may read no Secrets.
func (e *contractEngine) visible(t *testing.T, s driver.Server) string {
	t.Helper()
	p := e.podOf(t, s)
	claim, err := e.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal([]any{p, claim})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// change changes the machine of a server.
func (e *contractEngine) change(s driver.Server, do func(*playedMachine)) {
	e.mu.Lock()
	m := e.machines[types.UID(s.Run)]
	e.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	do(m)
}

// ignoresStop reports whether a guest is stubborn, or paused.
func (e *contractEngine) ignoresStop(p *corev1.Pod) bool {
	e.mu.Lock()
	m := e.machines[p.UID]
	e.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isStubborn || m.isPaused
}

// begin starts a played machine, which listens at an address of its own.
func (e *contractEngine) begin(p *corev1.Pod) (string, func() (int32, string), error) {
	secret, err := e.kube.CoreV1().Secrets(p.Namespace).Get(context.Background(), secretOf(p), metav1.GetOptions{})
	if err != nil {
		return "", nil, err
	}
	at, ok := controlPortOf(p)
	if !ok {
		return "", nil, fmt.Errorf("pod %s has no port %s", p.Name, controlPortName)
	}
	listener, address, err := e.listen(at)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &playedMachine{startedAt: time.Now()}
	files := control.Credentials{CA: secret.Data[control.CAFile], Cert: secret.Data[control.CertFile], Key: secret.Data[control.KeyFile]}
	server, err := control.NewServer(ctx, files, m)
	if err != nil {
		cancel()
		return "", nil, errors.Join(err, listener.Close())
	}
	go func() { _ = server.Serve(outsideListener{listener}) }()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.machines[p.UID] = m
	return address, func() (int32, string) { cancel(); return 0, "" }, nil
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

func controlPortOf(p *corev1.Pod) (int32, bool) {
	for _, at := range p.Spec.Containers[0].Ports {
		if at.Name == controlPortName {
			return at.ContainerPort, true
		}
	}
	return 0, false
}

// outsideListener accepts connections as if they came from another host: a machine accepts no
// others.
type outsideListener struct{ net.Listener }

func (l outsideListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return outsideConn{c}, err
}

type outsideConn struct{ net.Conn }

func (outsideConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(unreachable)} }

// playedMachine is the machine of a pod as far as the controller sees it. TestChannel has a real
// one.
type playedMachine struct {
	startedAt time.Time

	mu                   sync.Mutex
	isPaused, isStubborn bool
	burnsSince           time.Time
}

func (m *playedMachine) Status(context.Context) (control.Status, error) {
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

func (m *playedMachine) Pause(context.Context) error  { return m.setPaused(true) }
func (m *playedMachine) Resume(context.Context) error { return m.setPaused(false) }

func (m *playedMachine) setPaused(paused bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isPaused = paused
	return nil
}

func (*playedMachine) Probe(context.Context, int32) error        { return control.ErrNoAnswer }
func (*playedMachine) Grow(context.Context, control.Sizes) error { return nil }

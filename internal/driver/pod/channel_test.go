// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// machineProgram builds drover-machine for all tests.
var machineProgram = sync.OnceValues(func() (string, error) {
	program := filepath.Join(shared.DataDir, "drover-machine")
	return program, framework.BuildMachine(program)
})

// newNode has the kubelet of a world run one machine at a time for real.
func (w *world) newNode(t *testing.T) *podtest.Node {
	t.Helper()
	dir := framework.ShortTempDir(t)
	program, err := machineProgram()
	assert.NoError(t, err)
	n := &podtest.Node{Kube: w.kube, Dir: dir, Program: program, Image: filepath.Join(dir, "image")}
	assert.NoError(t, os.Mkdir(n.Image, 0o700))
	boot := framework.BuildBootGuest(t, dir, "A", false)
	assert.NoError(t, os.Rename(boot, filepath.Join(n.Image, "disk")))
	n.Network, n.Address = framework.NewNetwork(t, 19)
	w.kubelet.Lock()
	defer w.kubelet.Unlock()
	n.SetHooks(w.kubelet)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machines printed:\n%s", n.Output())
		}
	})
	return n
}

// usage samples a server until it is there.
func (s *server) usage(t testing.TB) (used driver.Usage) {
	t.Helper()
	assert.Eventually(t, s.Name+" is sampled", func(t testing.TB) error {
		all, err := s.d.Usage(t.Context(), s.UID)
		if err == nil && len(all) != 1 {
			return fmt.Errorf("there are %d samples", len(all))
		}
		if err == nil {
			used = all[0]
		}
		return err
	})
	return used
}

// TestChannel pauses, samples and probes a real machine, also through a second controller that
// knows nothing but the cluster.
func TestChannel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newNode(t)
	s := w.newServer(t, "web")
	s.SSHKeys, s.Ports = []string{"ssh-ed25519 AAAA me"}, []driver.Port{{Protocol: "TCP", Port: 7443}}
	s.reach(t, driver.StateRunning)
	used := s.usage(t)
	assert.True(t, used.UID == s.UID && used.Run == string(s.pod(t).UID) && used.CPU > 0 && used.MemoryBytes > 1<<20 && used.MemoryBytes <= s.MemoryBytes,
		"the usage is %+v", used)
	assert.Equal(t, "the accelerator", s.list(t).Accelerator, driver.AccelTCG)
	s.turn(t, driver.PowerPaused, driver.StatePaused)
	s.usage(t)
	assert.Equal(t, "a paused machine is listed as", s.list(t).State, driver.StatePaused)

	s.d = w.open(t) // a restart of the controller
	assert.Equal(t, "after a restart a paused machine is listed as", s.list(t).State, driver.StatePaused)
	s.turn(t, driver.PowerOn, driver.StateRunning)
	p := s.pod(t)
	assert.True(t, p.Annotations[objects.AnnotationPaused] == "", "a machine that runs has the annotations %v", p.Annotations)
	later := s.usage(t)
	assert.Eventually(t, "the guest uses CPU again", func(t testing.TB) error {
		now := s.usage(t)
		return assert.ErrorUnless(now.CPU > later.CPU, "it has used %v as before", now.CPU)
	})
	assert.ErrorIs(t, "a probe of a port without a forward", s.d.Probe(t.Context(), s.UID, 81), driver.ErrInvalid, "tcpSocket.port is 81")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // of which reading the pod takes a part
	defer cancel()
	assert.ErrorIs(t, "a probe of a guest that does not listen", s.d.Probe(ctx, s.UID, 7443), driver.ErrRetry, "")
	s.turn(t, driver.PowerOff, driver.StateStopped)
	all, err := s.d.Usage(t.Context(), s.UID)
	assert.True(t, err == nil && len(all) == 0, "a server that is off uses %v, %v", all, err)
	s.deleteAll(t)
	s.wantGone(t)
}

// TestPausedByOthers checks that a watch reports a machine that was paused past this driver: by
// another process, or without a trace in the cluster.
func TestPausedByOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.newNode(t)
	s := w.newServer(t, "web")
	s.reach(t, driver.StateRunning)
	s.usage(t)
	at, ok := instance.MachineOf(s.pod(t))
	other := machines.Machines{Secrets: w.kube.CoreV1().Secrets(machines.SeedNamespace), Clock: s.d.Clock}
	if err := other.Pause(t.Context(), at); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s.d = w.open(t)
	got := s.list(t)
	assert.Require(t, got.State == driver.StateRunning, "before anything was seen it is %s", got.State)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := s.d.Watch(ctx)
	assert.NoError(t, err)
	assert.Eventually(t, "an event after which it is paused", func(t testing.TB) error {
		s.usage(t) // by which a controller finds out, if the first look has found no answer
		if uid := <-events; uid != s.UID {
			return fmt.Errorf("got one of %s", uid)
		}
		if got := s.list(t); got.State != driver.StatePaused {
			return fmt.Errorf("it is %s", got.State)
		}
		return nil
	})
	go func() {
		for range events {
			continue
		}
	}()
	s.turn(t, driver.PowerOn, driver.StateRunning)
	s.deleteAll(t)
}

// TestHangingMachine checks that machines that do not answer lose only their sample, and delay
// only the calls to them.
func TestHangingMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent := w.newServer(t, "silent")
	silent.reach(t, driver.StateRunning) // at an address where nothing answers
	w.newNode(t)
	s := w.newServer(t, "web")
	s.d = silent.d
	s.reach(t, driver.StateRunning)
	s.usage(t)

	all, err := s.d.Usage(t.Context(), silent.UID, s.UID)
	assert.True(t, err == nil && len(all) == 1 && all[0].UID == s.UID, "the usage is %+v, %v, want that of %s", all, err, s.UID)
	got := silent.list(t)
	assert.True(t, got.State == driver.StateRunning && got.Err == nil, "a machine that is cut off is %s, %v", got.State, got.Err)
	assert.ErrorIs(t, "a probe of it", s.d.Probe(t.Context(), silent.UID, 80), driver.ErrRetry, "cannot be reached")
	silent.Power = driver.PowerPaused
	assert.ErrorIs(t, "pausing it", assert.ErrorOf(silent.ensure(t)), driver.ErrRetry, "spec.action: pausing the machine: the machine cannot be reached")
	assert.Equal(t, "a machine that could not be paused", silent.list(t).State, driver.StateRunning)
	silent.turn(t, driver.PowerOff, driver.StateStopped) // a stop needs no channel
	silent.deleteAll(t)
	s.deleteAll(t)
}

// TestSecret checks the Secret of a pod: it has the pod's end of the channel, goes with the pod,
// and is never adopted, read or deleted.
func TestSecret(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.UserData = driver.NewSecret("#cloud-config\n")
	secrets := w.kube.CoreV1().Secrets(s.Namespace)
	foreign := s.takeSecretNames(t, 3)
	s.reach(t, driver.StateRunning)
	p := s.pod(t)
	got, err := secrets.Get(t.Context(), objects.SecretOf(p), metav1.GetOptions{})
	assert.NoError(t, err)
	if string(got.Data["user-data"]) != "#cloud-config\n" || len(got.Data["tls.key"]) == 0 || got.OwnerReferences[0].UID != p.UID || got.UID != s.recordOf(objects.KindSecret).UID {
		t.Fatalf("the Secret has %v and %d keys; the record is %+v", got.ObjectMeta, len(got.Data), s.Objects)
	}
	for _, name := range foreign {
		if left, err := secrets.Get(t.Context(), name, metav1.GetOptions{}); err != nil || string(left.Data["user-data"]) != "evil" {
			t.Errorf("the tenant's Secret %s: %v", name, err)
		}
	}
	for _, name := range append(foreign, got.Name) { // one under the running guest
		assert.NoError(t, secrets.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	assert.Equal(t, "without its Secret the run", s.reach(t, driver.StateRunning).Run, string(p.UID))
	s.restart(t)
	next := objects.SecretOf(s.pod(t))
	assert.True(t, next != got.Name, "the next pod has the Secret %s too", next)
	s.deleteAll(t)
	s.wantGone(t)
}

// takeSecretNames lets a tenant, who sees the record, create Secrets of the recorded names before
// the driver does.
func (s *server) takeSecretNames(t *testing.T, times int) (names []string) {
	t.Helper()
	for range times {
		s.record(t)
		if s.recordOf(objects.KindPod).Ended { // of the pod whose Secret the tenant has taken
			s.record(t)
		}
		name := s.takeSecretName(t)
		assert.Require(t, !slices.Contains(names, name), "the record is %+v", s.Objects)
		names = append(names, name)
	}
	return names
}

// takeSecretName lets a tenant create the Secret that is recorded.
func (s *server) takeSecretName(t *testing.T) string {
	t.Helper()
	name := s.recordOf(objects.KindSecret).Name
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{objects.LabelUID: string(s.UID)}}, Data: map[string][]byte{"user-data": []byte("evil")}}
	assert.NoError(t, assert.ErrorOf(s.w.kube.CoreV1().Secrets(s.Namespace).Create(t.Context(), theirs, metav1.CreateOptions{})))
	return name
}

// record calls Ensure, which must have objects recorded before it does anything.
func (s *server) record(t *testing.T) {
	t.Helper()
	_, err := s.d.Ensure(t.Context(), s.ServerSpec)
	first, ok := errors.AsType[*driver.RecordFirstError](err)
	assert.Require(t, ok, "nothing is to be recorded: %v", err)
	s.Objects = first.Objects
}

// converge returns a call of Ensure that a crash may interrupt.
func (s *server) converge(t *testing.T) *convergence {
	t.Helper()
	c := newConvergence(s.d, s.ServerSpec)
	assert.NoError(t, c.prepareObjects(t.Context()))
	return c
}

// TestSecretAfterCrash ends the controller between two steps of a start. The pod that could have a
// Secret of unknown origin never runs, and its Secret goes with it.
func TestSecretAfterCrash(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.failWrites = true
	s.reach(t, driver.StateRunning) // whose UIDs were never recorded
	before := s.pod(t)
	s.failWrites, s.d = false, w.open(t)
	assert.Equal(t, "a pod without its gate is replaced by", s.reach(t, driver.StateRunning).Run, string(before.UID))
	s.deleteAll(t)

	s = w.newServer(t, "gated")
	s.StorageClassName = new("none")
	s.record(t)
	c := s.converge(t)
	assert.NoError(t, errors.Join(c.claims.ensureClaim(t.Context(), objects.Disk{Bytes: s.RootDiskBytes}), c.createPod(t.Context()), c.ensureSecret(t.Context())))
	gated := c.server.Pod
	s.d = w.open(t)
	s.reach(t, driver.StateRunning)
	if p := s.pod(t); p.UID == gated.UID || objects.SecretOf(p) == objects.SecretOf(gated) {
		t.Errorf("pod %s runs with the Secret %s, which may be anyone's", p.UID, objects.SecretOf(p))
	}
	s.deleteAll(t)
	s.wantGone(t)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/pod"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

const (
	contractClass = "contract"
	// contractVolumes is more than the number of the suite's servers: volumes are not reused.
	contractVolumes = 150
	bootImage       = "drover.test/boot:"
)

// TestPodContract runs the contract suite with driver pod on real kubelets. Its guests are a boot
// sector that obeys letters typed at the console. Package pod runs the same suite with a simulated kubelet.
func TestPodContract(t *testing.T) {
	tier.Full(t, "it takes ten minutes; package pod runs the suite with a simulated kubelet")
	importMachine(t)
	importBootGuests(t)
	for n := range contractVolumes {
		addSharedVolume(t, contractClass, fmt.Sprintf("%s-%d", contractClass, n))
	}
	e := &podtest.Engine{
		Cluster: &framework.Cluster{Config: shared.Config, Kubeconfig: shared.Kubeconfig}, Kube: shared.Client,
		Open: openPodDriver, Kill: killIfRunning,
	}
	h := e.Harness(driver.ServerSpec{
		CPUMilli: 250, MemoryBytes: 32 << 20, RootDiskBytes: 1 << 20, GracePeriod: 30 * time.Second,
		Image: driver.Image{Source: "oci://" + bootImage + "a"}, StorageClassName: new(contractClass),
	})
	h.OtherImage = "oci://" + bootImage + "b"
	h.StubbornSpec = func(t *testing.T) driver.ServerSpec {
		t.Helper()
		spec := h.Spec(t)
		spec.Image.Source = "oci://" + bootImage + "stubborn"
		return spec
	}
	h.OutOfBand = guestActions(e, h.OutOfBand)
	h.Guest = bootGuest(e)
	for _, name := range []string{"Exec", "ExecEnds", "ExecInput", "ExecOfManyCallers", "ExecTerminal", "Interfaces", "Dial"} {
		h.Skips[name] = "a boot sector has neither: TestPodStreams has a guest with an agent"
	}
	t.Run("suite", func(t *testing.T) { drivertest.Run(t, h) })
	checkNoPodLeft(t)
}

// importBootGuests imports the images of the suite's guests on all nodes.
func importBootGuests(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for tag, disk := range map[string]string{
		"a": framework.BuildBootGuest(t, dir, "A", false), "b": framework.BuildBootGuest(t, dir, "B", false),
		"stubborn": framework.BuildBootGuest(t, dir, "S", true),
	} {
		importImage(t, shared, bootImage+tag, map[string]string{"disk/boot.img": disk})
	}
}

func openPodDriver(t *testing.T, config *rest.Config, id string, within time.Duration) driver.Driver {
	t.Helper()
	o := pod.DefaultOptions()
	o.Objects.MachineImage, o.CallTimeout, o.Streams = machineImage, within, true
	d, err := o.Open(driver.Environment{ClusterID: id, Cluster: config, Clock: clock.RealClock{}})
	assert.NoError(t, err)
	return d
}

// waitForLog waits until a server has printed a text.
func waitForLog(t *testing.T, p *corev1.Pod, want string) {
	t.Helper()
	assert.Eventually(t, "the guest prints "+want, func(t testing.TB) error {
		text, err := shared.PodLog(t.Context(), p.Namespace, p.Name)
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("it shows %q", text)
		}
		return err
	})
}

// bootGuest describes the guests, which echo typed letters.
func bootGuest(e *podtest.Engine) drivertest.Guest {
	return drivertest.Guest{
		Print: func(t *testing.T, _ driver.Driver, s driver.Server, word string) {
			t.Helper()
			p := e.PodOf(t, s)
			waitForLog(t, p, "drover guest")
			typeInto(t, p.Namespace, p.Name, word+"\n")
			waitForLog(t, p, word)
		},
		Type: func(word string) string { return word },
	}
}

// guestActions adds the actions of the guests, and of the host of all nodes.
func guestActions(e *podtest.Engine, to drivertest.OutOfBand) drivertest.OutOfBand {
	say := func(t *testing.T, s driver.Server, letter string) {
		t.Helper()
		p := e.PodOf(t, s)
		waitForLog(t, p, "drover guest")
		typeInto(t, p.Namespace, p.Name, letter)
	}
	to.Kill = func(t *testing.T, s driver.Server) {
		t.Helper()
		assert.Eventually(t, "QEMU runs", func(testing.TB) error { return killQEMU(string(s.UID)) })
	}
	to.Stop = func(t *testing.T, s driver.Server) { t.Helper(); say(t, s, "x") }
	to.BurnCPU = func(t *testing.T, s driver.Server) { t.Helper(); say(t, s, "b") }
	to.Exit = func(t *testing.T, s driver.Server, code int) {
		t.Helper()
		say(t, s, map[bool]string{true: "x", false: "p"}[code == 0])
	}
	return to
}

// killIfRunning kills the machine of a pod, if the machine has started and not ended.
func killIfRunning(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if err := killQEMU(p.Labels[objects.LabelUID]); err != nil {
		t.Logf("pod %s/%s, %s: %v", p.Namespace, p.Name, p.Status.Phase, err)
	}
}

// killQEMU kills the QEMU of a machine.
func killQEMU(uid string) error {
	pid, ok := findProcess("qemu-system", uid)
	if !ok {
		return errors.New("QEMU does not run")
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// checkNoPodLeft checks that all pods of the suite are gone.
func checkNoPodLeft(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "all pods are gone", func(t testing.TB) error {
		left, err := shared.Client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{LabelSelector: objects.LabelUID})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d are left, such as %s/%s", len(left.Items), left.Items[0].Namespace, left.Items[0].Name)
		}
		return err
	})
}

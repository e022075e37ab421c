// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// guestGrace is longer than any test takes, so that no stop is forced.
const guestGrace = 3600

// machineEnvironment is an environment whose VMs are QEMU machines, and the folders for
// them.
type machineEnvironment struct {
	*testenv.Environment
	dir, images string
	controller  *testenv.LocalController
}

func newMachineEnvironment(t *testing.T) *machineEnvironment {
	t.Helper()
	framework.QEMUBinary(t)
	temp := framework.ShortTempDir(t)
	testenv.KillMachinesAtEnd(t, temp)
	m := &machineEnvironment{Environment: testenv.StartVirtual(t), dir: filepath.Join(temp, "qemu"), images: filepath.Join(temp, "images")}
	assert.NoError(t, os.Mkdir(m.images, 0o700))
	m.startController(t)
	return m
}

func (m *machineEnvironment) startController(t *testing.T) {
	t.Helper()
	m.controller = m.RunController(t, "--vm-driver=qemu", "--qemu-dir="+m.dir, "--qemu-image-dirs="+m.images, "--qemu-accel=tcg", "--qemu-kernel="+framework.GuestKernel(t), "--image-hosts=127.0.0.1")
}

// TestMachine checks the life cycle of a QEMU machine: it outlives the controller, is powered
// off by its power button, boots again with its disk, and is removed completely. The test also
// applies the documentation's manifest unchanged.
func TestMachine(t *testing.T) {
	t.Parallel()
	m := newMachineEnvironment(t)
	vm := m.CreateActiveVM(t, framework.NewVM("machine").Driver("qemu").GracePeriod(guestGrace).Resource(api.ResourceCPU, "1").
		Resource(api.ResourceMemory, "32Mi").Image(framework.BuildBootGuest(t, m.images, "A", false)))
	m.waitForConsole(t, vm, "drover guest 1 A")
	m.checkOutlivesController(t, vm)

	vm = m.UpdateVM(t, vm, setAction(api.ActionStopped))
	vm = m.WaitForVM(t, vm, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked), framework.HasCondition(api.ConditionReady, metav1.ConditionTrue))
	s := vm.Status
	assert.True(t, len(s.Addresses) == 0 && len(s.Ports) == 0, "a stopped machine still has the addresses %v and the ports %+v", s.Addresses, s.Ports)
	// The guest's end is reported before its QEMU has ended.
	assert.Eventually(t, "the process of the machine ends", func(t testing.TB) error {
		pids := testenv.MachineProcesses(t, vm.UID)
		return assert.ErrorUnless(len(pids) == 0, "it has the processes %v", pids)
	})

	vm = m.UpdateVM(t, vm, setAction(api.ActionActive))
	vm = m.WaitForVM(t, vm, framework.IsActive)
	m.waitForConsole(t, vm, "drover guest 2 A")
	m.checkNothingLeft(t, vm)
	m.checkManifest(t)
}

// checkManifest checks that a VM without an image boots the built-in image with the spec's settings.
func (m *machineEnvironment) checkManifest(t *testing.T) {
	t.Helper()
	manifest, err := os.ReadFile("../../examples/test-vm.yaml")
	assert.NoError(t, err)
	m.MustRunKubectl(t, string(manifest), "apply", "-n", m.Namespace, "-f", "-")
	vm, err := m.VMsIn(m.Namespace).Get(t.Context(), "test-vm", metav1.GetOptions{})
	assert.NoError(t, err)
	vm = m.WaitForVM(t, vm, framework.IsActive)
	m.waitForOutput(t, vm, "stdout.log", "Hello from test-vm: Linux ")
	m.waitForOutput(t, vm, "stdout.log", " 2 CPUs, ")
	m.waitForOutput(t, vm, "stdout.log", " 36.6G of disk, boot 1.")
	m.checkNothingLeft(t, vm)
}

// checkOutlivesController checks that the machine has the same process after the next controller
// has applied a change.
func (m *machineEnvironment) checkOutlivesController(t *testing.T, vm *api.VirtualMachine) {
	t.Helper()
	before := testenv.MachineProcesses(t, vm.UID)
	m.controller.MustStop(t)
	m.startController(t)
	vm = m.UpdateVM(t, vm, func(vm *api.VirtualMachine) { *vm.Spec.ShutdownGracePeriodSeconds++ })
	next := m.WaitForVM(t, vm, framework.IsActive)
	pids := testenv.MachineProcesses(t, vm.UID)
	assert.True(t, len(pids) == 1 && slices.Equal(pids, before), "the processes were %v and are %v, want one process that stays the same", before, pids)
	assert.True(t, slices.Equal(next.Status.Ports, vm.Status.Ports) && next.Status.RestartCount == 0,
		"the status was %s and is %s", framework.FormatStatus(vm), framework.FormatStatus(next))
}

// waitForConsole waits for a text on the guest's console.
func (m *machineEnvironment) waitForConsole(t *testing.T, vm *api.VirtualMachine, text string) {
	t.Helper()
	m.waitForOutput(t, vm, "serial.log", text)
}

// waitForOutput waits for a text in a file of a machine.
func (m *machineEnvironment) waitForOutput(t *testing.T, vm *api.VirtualMachine, file, text string) {
	t.Helper()
	assert.Eventually(t, file+" has "+text, func(testing.TB) error {
		log, err := os.ReadFile(filepath.Join(m.dir, "vms", string(vm.UID), file))
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("the file has %q", log)
		}
		return err
	})
}

func (m *machineEnvironment) checkNothingLeft(t *testing.T, vm *api.VirtualMachine) {
	t.Helper()
	m.DeleteVM(t, vm)
	m.WaitForDeletion(t, vm)
	pids := testenv.MachineProcesses(t, vm.UID)
	assert.True(t, len(pids) == 0, "processes are left: %v", pids)
	assert.Eventually(t, "no file is left", func(t testing.TB) error {
		files := testenv.FilesWithUID(t, m.dir, vm.UID)
		return assert.ErrorUnless(len(files) == 0, "there are %v", files)
	})
}

// TestPortLost lets another program take a port of a machine while the machine is without a supervisor. It checks that the port
// is removed from the VM's status with a reason, and is back once the other program has closed it.
func TestPortLost(t *testing.T) {
	t.Parallel()
	m := newMachineEnvironment(t)
	vm := m.CreateActiveVM(t, framework.NewVM("machine").Driver("qemu").Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "32Mi").
		Image(framework.BuildBootGuest(t, m.images, "A", false)).Spec(func(s *api.VirtualMachineSpec) {
		s.Ports = []api.Port{{Name: "web", Port: 80, Protocol: api.ProtocolTCP}}
	}))
	m.controller.MustStop(t)
	var supervisor struct{ PID int }
	assert.NoError(t, json.Unmarshal([]byte(framework.ReadFile(t, filepath.Join(m.dir, "vms", string(vm.UID), "supervisor.json"))), &supervisor))
	assert.NoError(t, syscall.Kill(supervisor.PID, syscall.SIGKILL))
	var thief net.Listener
	assert.Eventually(t, "the port of the killed supervisor is free", func(testing.TB) (err error) {
		thief, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", vm.Status.Ports[0].HostPort))
		return err
	})
	t.Cleanup(func() { _ = thief.Close() })
	m.startController(t)
	lost := m.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonPortConflict), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
	assert.True(t, len(lost.Status.Ports) == 0 && lost.Status.RestartCount == 0, "without the port the status is %s", framework.FormatStatus(lost))
	assert.NoError(t, thief.Close())
	next := m.WaitForVM(t, vm, framework.IsActive)
	assert.True(t, slices.Equal(next.Status.Ports, vm.Status.Ports), "the status was %s and is %s", framework.FormatStatus(vm), framework.FormatStatus(next))
	m.checkNothingLeft(t, vm)
}

// TestQEMUStopEndsDownloads checks that a controller that stops ends its downloads and
// removes partial files.
func TestQEMUStopEndsDownloads(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(web.Close)
	m := newMachineEnvironment(t)
	m.CreateVM(t, newSmallVM("fetching", "default", "qemu").Spec(func(s *api.VirtualMachineSpec) {
		s.Image = &api.Image{Source: web.URL, Checksum: "sha256:" + strings.Repeat("0", 64)}
	}))
	<-begun
	m.controller.MustStop(t)
	// The controller does not wait long for the end of a download.
	assert.Eventually(t, "nothing is left behind", func(testing.TB) error {
		left, err := os.ReadDir(filepath.Join(m.dir, "tmp"))
		if err == nil && len(left) != 0 {
			err = fmt.Errorf("there are %v", left)
		}
		return err
	})
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

const (
	// guestGrace is more than any test waits, so that no stop is forced.
	guestGrace = 3600
	userData   = "#cloud-config\npassword: \"a'b,c=d\"\n"
)

// machineEnvironment is an environment whose VMs are real machines, and the folders for
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
	m.controller = m.RunController(t, "--vm-driver=qemu", "--qemu-dir="+m.dir, "--qemu-image-dirs="+m.images, "--qemu-accel=tcg", "--image-hosts=127.0.0.1")
}

// testGuest is a guest of machines.
type testGuest struct {
	newVM func(*testing.T, *machineEnvironment) *framework.VMBuilder
	// check requires that the guest is up for the n-th time.
	check func(t *testing.T, m *machineEnvironment, vm *api.VirtualMachine, boots int)
	// after is what the console shows when it was powered off.
	after string
}

var (
	bootGuest  = testGuest{newBootVM, checkBootGuest, "drover guest 1 A"}
	linuxGuest = testGuest{newLinuxVM, checkLinuxGuest, "drover linux guest powers off"}
)

func newMachineVM() *framework.VMBuilder {
	return framework.NewVM("machine").Driver("qemu").GracePeriod(guestGrace).Resource(api.ResourceCPU, "1")
}

// newBootVM is a VM with the guest of one boot sector.
func newBootVM(t *testing.T, m *machineEnvironment) *framework.VMBuilder {
	return newMachineVM().Resource(api.ResourceMemory, "32Mi").Image(framework.BuildBootGuest(t, m.images, "A", false))
}

func checkBootGuest(t *testing.T, m *machineEnvironment, vm *api.VirtualMachine, boots int) {
	t.Helper()
	m.waitForConsole(t, vm, fmt.Sprintf("drover guest %d A", boots))
}

// newLinuxVM is a VM with the Linux guest, which serves on port 80.
func newLinuxVM(t *testing.T, m *machineEnvironment) *framework.VMBuilder {
	guest := framework.BuildLinuxGuest(t, m.images)
	return newMachineVM().Resource(api.ResourceMemory, "256Mi").Resource(api.ResourceRootDisk, "64Mi").
		Port("http", 80, 0).ReadinessProbe(80).
		Spec(func(s *api.VirtualMachineSpec) {
			text := userData
			s.UserData = &api.DataSource{Inline: &text}
			s.Image = &api.Image{Kernel: &api.Kernel{Source: guest.Kernel, Initrd: guest.Initrd, Cmdline: "console=ttyS0 quiet panic=-1"}}
			s.ReadinessProbe.TimeoutSeconds = 10
		})
}

// checkLinuxGuest queries the guest once, at the address in its status: it is ready.
func checkLinuxGuest(t *testing.T, _ *machineEnvironment, vm *api.VirtualMachine, boots int) {
	t.Helper()
	if len(vm.Status.Addresses) != 1 || len(vm.Status.Ports) != 1 {
		t.Fatalf("it is reached by %v and %+v", vm.Status.Addresses, vm.Status.Ports)
	}
	port := vm.Status.Ports[0]
	if port.HostPort == 0 || port != (api.PortStatus{Name: "http", Protocol: api.ProtocolTCP, Port: 80, HostPort: port.HostPort}) {
		t.Fatalf("its port is %+v", port)
	}
	url := "http://" + net.JoinHostPort(vm.Status.Addresses[0], strconv.Itoa(int(port.HostPort)))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	assert.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("the guest is ready and does not answer: %v", err)
	}
	defer func() { _ = answer.Body.Close() }()
	var report struct {
		Boots int
		Seed  map[string]string
	}
	if err := json.NewDecoder(answer.Body).Decode(&report); err != nil || report.Boots != boots || report.Seed["user-data"] != userData {
		t.Errorf("the guest reports %+v, %v", report, err)
	}
}

// TestMachine takes a real machine through its life cycle: it outlives the controller, is
// powered off by its power button, boots again with its disk, and leaves nothing behind.
func TestMachine(t *testing.T) {
	t.Parallel()
	testMachine(t, bootGuest)
}

// TestLinuxMachine is TestMachine for a guest that has a network: it is ready when it answers.
func TestLinuxMachine(t *testing.T) {
	tier.Full(t, "a Linux guest boots twice under emulation; the gate keeps TestMachine, and the Linux guest of internal/driver/qemu")
	t.Parallel()
	testMachine(t, linuxGuest)
}

func testMachine(t *testing.T, guest testGuest) {
	t.Helper()
	m := newMachineEnvironment(t)
	vm := m.CreateVM(t, guest.newVM(t, m))
	history := m.RecordHistory(t, vm)
	vm = m.WaitForVM(t, vm, framework.IsActive)
	guest.check(t, m, vm, 1)
	if vm.Spec.ReadinessProbe != nil && !slices.ContainsFunc(history.WaitForVersion(t, vm), isWaitingForProbe) {
		t.Error("no status showed that the machine runs and is not ready yet")
	}
	m.checkOutlivesController(t, vm, guest)

	vm = m.UpdateVM(t, vm, setAction(api.ActionStopped))
	vm = m.WaitForVM(t, vm, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked), framework.HasCondition(api.ConditionReady, metav1.ConditionTrue))
	if s := vm.Status; len(s.Addresses) != 0 || len(s.Ports) != 0 {
		t.Errorf("off it is reached by %v and %+v", s.Addresses, s.Ports)
	}
	// The guest's end is reported first; its QEMU is reaped after that.
	assert.Eventually(t, "the process of the machine ends", func(t testing.TB) error {
		if pids := testenv.MachineProcesses(t, vm.UID); len(pids) != 0 {
			return fmt.Errorf("it has the processes %v", pids)
		}
		return nil
	})
	m.waitForConsole(t, vm, guest.after)

	vm = m.UpdateVM(t, vm, setAction(api.ActionActive))
	vm = m.WaitForVM(t, vm, framework.IsActive)
	guest.check(t, m, vm, 2)
	m.checkNothingLeft(t, vm)
}

func isWaitingForProbe(vm *api.VirtualMachine) bool {
	return errors.Join(
		framework.HasPhase(api.PhaseActive, api.ReasonProbeFailing)(vm),
		framework.HasCondition(api.ConditionRunning, metav1.ConditionTrue)(vm),
		framework.HasCondition(api.ConditionReady, metav1.ConditionFalse)(vm),
	) == nil
}

// checkOutlivesController checks that the next controller, which has applied a change, finds
// the same process, and the same address to reach it.
func (m *machineEnvironment) checkOutlivesController(t *testing.T, vm *api.VirtualMachine, guest testGuest) {
	t.Helper()
	before := testenv.MachineProcesses(t, vm.UID)
	m.controller.MustStop(t)
	m.startController(t)
	vm = m.UpdateVM(t, vm, func(vm *api.VirtualMachine) { *vm.Spec.ShutdownGracePeriodSeconds++ })
	next := m.WaitForVM(t, vm, framework.IsActive)
	if pids := testenv.MachineProcesses(t, vm.UID); len(pids) != 1 || !slices.Equal(pids, before) {
		t.Errorf("the processes were %v and are %v, want one and the same", before, pids)
	}
	if !slices.Equal(next.Status.Ports, vm.Status.Ports) || next.Status.RestartCount != 0 {
		t.Errorf("the status was %s and is %s", framework.FormatStatus(vm), framework.FormatStatus(next))
	}
	guest.check(t, m, next, 1)
}

// waitForConsole waits for a text on the guest's console.
func (m *machineEnvironment) waitForConsole(t *testing.T, vm *api.VirtualMachine, text string) {
	t.Helper()
	assert.Eventually(t, "the console shows "+text, func(testing.TB) error {
		log, err := os.ReadFile(filepath.Join(m.dir, "vms", string(vm.UID), "serial.log"))
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("it shows %q", log)
		}
		return err
	})
}

func (m *machineEnvironment) checkNothingLeft(t *testing.T, vm *api.VirtualMachine) {
	t.Helper()
	m.DeleteVM(t, vm)
	m.WaitForDeletion(t, vm)
	if pids := testenv.MachineProcesses(t, vm.UID); len(pids) != 0 {
		t.Errorf("processes are left: %v", pids)
	}
	assert.Eventually(t, "no file is left", func(t testing.TB) error {
		if files := testenv.FilesWithUID(t, m.dir, vm.UID); len(files) != 0 {
			return fmt.Errorf("there are %v", files)
		}
		return nil
	})
}

// TestQEMUStopEndsDownloads checks that a stopping controller ends its downloads and
// removes their partial results.
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
	// The controller does not wait for long for a fetch that it has ended.
	assert.Eventually(t, "nothing is left behind", func(testing.TB) error {
		left, err := os.ReadDir(filepath.Join(m.dir, "tmp"))
		if err == nil && len(left) != 0 {
			err = fmt.Errorf("there are %v", left)
		}
		return err
	})
}

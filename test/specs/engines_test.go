// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// TestFake runs all values and rows with the fake driver.
func TestFake(t *testing.T) {
	t.Parallel()
	newSuite(t, fakeEngine()).runAll()
}

func fakeEngine() engine {
	return engine{
		name: "fake", image: "image:1", support: (&fake.Driver{}).SupportedFields(), workers: 8, valueStride: 1, rowStride: 14,
		base: map[string]any{"driver": "fake", "resource": map[string]any{"cpu": 1, "memory": "32Mi"}},
		read: readFake, left: leftFake, seesAll: true,
	}
}

func readFake(t *testing.T, vm *api.VirtualMachine) any {
	t.Helper()
	r := environment.ReadFakeServer(t, vm.UID)
	if r == nil {
		return nil
	}
	r.UID, r.ID, r.Namespace, r.Name, r.Epoch = "", "", "", "", 0
	r.Run, r.StartedAt, r.UpAt, r.Exit, r.RootDiskBytes = "", time.Time{}, time.Time{}, nil, 0
	return *r
}

func leftFake(t *testing.T, vm *api.VirtualMachine) (left []string) {
	t.Helper()
	if r := environment.ReadFakeServer(t, vm.UID); r != nil {
		left = append(left, r.ID)
	}
	return left
}

// TestDocker runs them with containers.
func TestDocker(t *testing.T) {
	t.Parallel()
	newSuite(t, engine{
		name: "docker", image: framework.GuestPlain, support: (&docker.Driver{}).SupportedFields(), workers: 4, valueStride: 13, rowStride: 33,
		base: map[string]any{
			"driver": "docker", "shutdownGracePeriodSeconds": 5,
			"resource": map[string]any{"cpu": "100m", "memory": "32Mi"}, "image": map[string]any{"source": framework.GuestPlain},
		},
		read: readContainer, left: leftContainers,
	}).runAll()
}

// containerState is the state of a container that a spec determines.
type containerState struct {
	image            string
	cpu, memory      int64
	restart          container.RestartPolicyMode
	running, paused  bool
	published, count int
}

func readContainer(t *testing.T, vm *api.VirtualMachine) any {
	t.Helper()
	c := testenv.InspectServer(t, vm)
	return containerState{
		c.Config.Image, c.HostConfig.NanoCPUs, c.HostConfig.Memory, c.HostConfig.RestartPolicy.Name, c.State.Running, c.State.Paused,
		len(c.HostConfig.PortBindings), len(testenv.ListContainers(t, vm.UID)),
	}
}

// leftContainers returns the containers that are left of a VM. It removes a container that was to be
// retained.
func leftContainers(t *testing.T, vm *api.VirtualMachine) (left []string) {
	t.Helper()
	for _, c := range testenv.ListContainers(t, vm.UID) {
		if !slices.ContainsFunc(c.Names, func(name string) bool { return filepath.Ext(name) == docker.RetainedSuffix }) {
			left = append(left, c.ID)
		}
		testenv.RemoveContainer(t, c.ID)
	}
	return left
}

// TestQEMU runs them with machines, which are emulated.
func TestQEMU(t *testing.T) {
	t.Parallel()
	image := framework.BuildBootGuest(t, environment.images, "A", false)
	testenv.KillMachinesAtEnd(t, filepath.Dir(environment.qemuDir))
	newSuite(t, engine{
		name: "qemu", image: image, support: (&qemu.Driver{}).SupportedFields(), workers: 3, valueStride: 29, rowStride: 81,
		base: map[string]any{
			"driver": "qemu", "shutdownGracePeriodSeconds": 5,
			"resource": map[string]any{"cpu": 1, "memory": "32Mi"}, "image": map[string]any{"source": image},
		},
		read: readMachine, left: leftMachines,
	}).runAll()
}

// TestQEMUContainers runs the fields of commands with machines of a container image.
func TestQEMUContainers(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it boots machines for minutes; TestFake has the fields' values, and TestContainerFields their refusals")
	testenv.KillMachinesAtEnd(t, filepath.Dir(environment.qemuDir))
	newSuite(t, engine{
		name: "qemu", image: environment.container, support: (&qemu.Driver{}).SupportedFields(), workers: 3, fullStride: 4,
		only: []string{"image", "command", "args", "env", "workingDir", "user", "init", "stdin", "tty", "sysctls", "ephemeral"},
		base: map[string]any{
			"driver": "qemu", "shutdownGracePeriodSeconds": 5, "ephemeral": true,
			"resource": map[string]any{"cpu": 1, "memory": "128Mi"}, "image": map[string]any{"source": environment.container},
		},
		read: readMachine, left: leftMachines,
	}).runAll()
}

// machineState is the state of a machine that a spec determines.
type machineState struct {
	settings  string
	processes int
}

func readMachine(t *testing.T, vm *api.VirtualMachine) any {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(environment.qemuDir, instance.VMsDir, string(vm.UID), instance.RecordFile))
	if err != nil {
		return err
	}
	var r record.Record
	if err := json.Unmarshal(content, &r); err != nil {
		return err
	}
	settings, err := json.Marshal(r.Settings)
	if err != nil {
		return err
	}
	return machineState{string(settings), len(testenv.MachineProcesses(t, vm.UID))}
}

// leftMachines returns what is left of a VM's machine. It ends a machine that was to be
// retained.
func leftMachines(t *testing.T, vm *api.VirtualMachine) (left []string) {
	t.Helper()
	retained, err := filepath.Glob(filepath.Join(environment.qemuDir, instance.RetainedDir, string(vm.UID)+"*"))
	must(t, err)
	if len(retained) > 0 {
		return endRetained(t, vm, retained)
	}
	// The machine's supervisor may report the end after the deletion.
	_ = assert.Poll(t.Context(), "nothing is left", func() error {
		left = testenv.FilesWithUID(t, environment.qemuDir, vm.UID)
		for _, pid := range testenv.MachineProcesses(t, vm.UID) {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
		return assert.ErrorUnless(len(left) == 0, "something is left")
	})
	return left
}

func endRetained(t *testing.T, vm *api.VirtualMachine, folders []string) (left []string) {
	t.Helper()
	for _, pid := range testenv.MachineProcesses(t, vm.UID) {
		p, err := os.FindProcess(pid)
		must(t, err)
		must(t, p.Kill())
	}
	assert.Eventually(t, "the machine ends", func(t testing.TB) error {
		pids := testenv.MachineProcesses(t, vm.UID)
		return assert.ErrorUnless(len(pids) == 0, "%v run", pids)
	})
	for _, folder := range folders {
		must(t, os.RemoveAll(folder))
	}
	return nil
}

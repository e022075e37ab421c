// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgrade tests that a host can be upgraded to the next release and gone back from, with machines in every
// state. The next release is this one built with the tag nextrelease: its records have a field more, its guests a
// protocol number and a verb more.
//
// Start with TestUpgrade.
package upgrade

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// host is a data dir, and the two versions of Drover that run on it.
type host struct {
	dir, images string
	// kernels are the folders with the guests of container images, by the version of Drover.
	kernels       map[string]string
	present, next string
	binary        string // the version that runs
	running       *framework.Cluster
	// released is the ID of the released server, which no purge removes.
	released string
}

// start starts a version of Drover. The one before was stopped or killed.
func (h *host) start(t *testing.T, binary string) {
	t.Helper()
	c, err := framework.NewCluster(framework.ClusterOptions{
		Binary: binary, DataDir: h.dir, WithController: true,
		Args: []string{"--vm-driver", "qemu,fake", "--qemu-image-dirs", h.images, "--qemu-kernel", h.kernels[binary]},
	})
	assert.NoError(t, err)
	h.binary, h.running = binary, c
}

// switchTo kills the version that runs, and starts another one.
func (h *host) switchTo(t *testing.T, binary string) {
	t.Helper()
	assert.NoError(t, h.running.Kill())
	h.start(t, binary)
}

func (h *host) objects(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	assert.NoError(t, api.AddToScheme(scheme))
	c, err := client.New(h.running.Config, client.Options{Scheme: scheme})
	assert.NoError(t, err)
	return c
}

// create creates a VirtualMachine, and returns it with its UID.
func (h *host) create(t *testing.T, b *framework.VMBuilder) *api.VirtualMachine {
	t.Helper()
	vm := b.Obj()
	assert.NoError(t, h.objects(t).Create(t.Context(), vm))
	return vm
}

// update applies a change to a VirtualMachine, and repeats it after a conflict.
func (h *host) update(t *testing.T, vm *api.VirtualMachine, change func(*api.VirtualMachine)) {
	t.Helper()
	c := h.objects(t)
	assert.Eventually(t, vm.Name+" is changed", func(testing.TB) error {
		now := h.get(t, c, vm)
		change(now)
		return c.Update(t.Context(), now)
	})
}

func (h *host) get(t *testing.T, c client.Client, vm *api.VirtualMachine) *api.VirtualMachine {
	t.Helper()
	now := &api.VirtualMachine{}
	assert.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(vm), now))
	return now
}

// awaitPhase waits until the version that runs has reported a phase of a VirtualMachine.
func (h *host) awaitPhase(t *testing.T, vm *api.VirtualMachine, phase api.Phase) {
	t.Helper()
	c := h.objects(t)
	assert.Eventually(t, vm.Name+" is "+string(phase), func(testing.TB) error {
		now := h.get(t, c, vm)
		isReported := now.Status.Phase == phase && now.Status.ObservedGeneration == now.Generation
		return assert.ErrorUnless(isReported, "it is %s", now.Status.Phase)
	})
}

// machine has the values that stay the same in the life of a server.
type machine struct {
	UUID, MAC, ID, Run string
	// PID is of its QEMU, 0 if that does not run.
	PID string
}

// folder returns the folder of a server of driver qemu, which may be released.
func (h *host) folder(t *testing.T, vm *api.VirtualMachine) string {
	t.Helper()
	qemu := filepath.Join(h.dir, "drivers", "qemu")
	found, err := filepath.Glob(filepath.Join(qemu, "retained", string(vm.UID)+".*"))
	assert.NoError(t, err)
	return append(found, filepath.Join(qemu, "vms", string(vm.UID)))[0]
}

func (h *host) record(t *testing.T, vm *api.VirtualMachine) map[string]any {
	t.Helper()
	path := filepath.Join(h.folder(t, vm), "server.json")
	if vm.Spec.Driver == "fake" {
		path = filepath.Join(h.dir, "drivers", "fake", string(vm.UID)+".json")
	}
	var fields map[string]any
	text, err := os.ReadFile(path)
	assert.NoError(t, errors.Join(err, json.Unmarshal(text, &fields)))
	return fields
}

func (h *host) machine(t *testing.T, vm *api.VirtualMachine) machine {
	t.Helper()
	text := func(name string) string { s, _ := h.record(t, vm)[name].(string); return s }
	m := machine{UUID: text("uuid"), MAC: text("mac"), ID: text("id"), Run: text("run")}
	if pid, err := os.ReadFile(filepath.Join(h.folder(t, vm), "pid")); err == nil {
		m.PID = strings.TrimSpace(string(pid))
	}
	if _, err := os.Stat("/proc/" + m.PID); err != nil {
		m.PID = ""
	}
	return m
}

// kept has VirtualMachines in every state, and their machines.
type kept struct {
	vms    map[string]*api.VirtualMachine
	phases map[string]api.Phase
	had    map[string]machine
}

// makeMachines makes a machine in every state.
func (h *host) makeMachines(t *testing.T, image string) *kept {
	t.Helper()
	k := &kept{vms: map[string]*api.VirtualMachine{}, had: map[string]machine{}, phases: map[string]api.Phase{
		"running": api.PhaseActive, "paused": api.PhasePaused, "stopped": api.PhaseStopped, "crashed": api.PhaseFailed,
		"released": api.PhaseActive, "simulated": api.PhaseActive, "mandatory": api.PhaseActive,
		"container": api.PhaseActive,
	}}
	for name := range k.phases {
		b := framework.NewVM(name).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "64M").Image(image).Driver("qemu").GracePeriod(1)
		switch name {
		case "crashed":
			b.RestartPolicy(api.RestartNever)
		case "released":
			b.DeletionPolicy(api.DeletionRetain)
		case "simulated":
			b = framework.NewVM(name).Driver("fake")
		case "container":
			b.Resource(api.ResourceMemory, "128Mi").Image("drover://built-in")
		}
		k.vms[name] = h.create(t, b)
	}
	for _, vm := range k.vms {
		h.awaitPhase(t, vm, api.PhaseActive)
	}
	h.update(t, k.vms["paused"], func(vm *api.VirtualMachine) { vm.Spec.Action = api.ActionPaused })
	h.update(t, k.vms["stopped"], func(vm *api.VirtualMachine) { vm.Spec.Action = api.ActionStopped })
	h.kill(t, k.vms["crashed"])
	assert.NoError(t, h.objects(t).Delete(t.Context(), k.vms["released"]))
	for name, vm := range k.vms {
		if name != "released" {
			h.awaitPhase(t, vm, k.phases[name])
		}
	}
	assert.Eventually(t, "it is released", func(testing.TB) error {
		return assert.ErrorUnless(strings.Contains(h.folder(t, k.vms["released"]), "retained"), "it is not")
	})
	for name, vm := range k.vms {
		k.had[name] = h.machine(t, vm)
	}
	h.released = k.had["released"].ID
	return k
}

// kill kills the QEMU of a machine.
func (h *host) kill(t *testing.T, vm *api.VirtualMachine) {
	t.Helper()
	assert.NoError(t, syscall.Kill(h.processOf(t, vm), syscall.SIGKILL))
}

// processOf returns the process ID of the QEMU of a machine.
func (h *host) processOf(t *testing.T, vm *api.VirtualMachine) int {
	t.Helper()
	pid, err := strconv.Atoi(h.machine(t, vm).PID)
	assert.NoError(t, err)
	return pid
}

// check checks that the version that runs reports every machine in its state, that no machine has changed, and that the
// guest of a container image runs commands.
func (h *host) check(t *testing.T, k *kept) {
	t.Helper()
	for name, vm := range k.vms {
		if name != "released" {
			h.awaitPhase(t, vm, k.phases[name])
		}
		assert.Equal(t, name, h.machine(t, vm), k.had[name])
	}
	assert.Eventually(t, "a command runs in the container", func(t testing.TB) error {
		out, errs, err := framework.RunCommand(t, framework.CommandTimeout, []string{"KUBECONFIG=" + h.running.Kubeconfig}, h.binary,
			"vm", "exec", "container", "--", "echo", "across")
		return assert.ErrorUnless(err == nil && out == "across\n", "it printed %q, %s: %v", out, errs, err)
	})
}

// TestUpgrade upgrades by a kill at work, and goes back. Machines in every state keep their processes, UUIDs and MACs,
// and the records keep the fields of the next release. What this release would misunderstand it refuses by name: first
// one record, and then the whole data dir.
func TestUpgrade(t *testing.T) {
	tier.Full(t, "builds Drover again, and boots machines")
	present, err := framework.DroverBinary()
	assert.NoError(t, err)
	h := &host{dir: filepath.Join(framework.ShortTempDir(t), "data"), images: t.TempDir(), present: present, next: buildNext(t)}
	h.kernels = map[string]string{h.present: framework.GuestKernel(t), h.next: buildNextGuest(t)}
	image := framework.BuildBootGuest(t, h.images, "A", false)
	t.Cleanup(func() { h.end(t) })
	h.start(t, h.present)
	k := h.makeMachines(t, image)
	late := h.create(t, framework.NewVM("late").Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "64M").Image(image).Driver("qemu").GracePeriod(1))

	h.switchTo(t, h.next) // while the last machine is being made
	h.awaitPhase(t, late, api.PhaseActive)
	k.vms["late"], k.phases["late"], k.had["late"] = late, api.PhaseActive, h.machine(t, late)
	h.check(t, k)
	for _, name := range []string{"late", "simulated"} {
		h.stop(t, k, name)
		assert.True(t, h.record(t, k.vms[name])["nextRelease"] != nil, "%s: the next release adds no field", name)
	}

	h.switchTo(t, h.present)
	h.check(t, k)
	for _, name := range []string{"late", "simulated"} {
		h.startAgain(t, k, name)
		assert.True(t, h.record(t, k.vms[name])["nextRelease"] != nil, "%s: this release drops a field of the next one", name)
	}
	h.checkMandatory(t, k)
	h.checkDataVersion(t, k)
}

// stop stops a server by the version that runs, which writes its record.
func (h *host) stop(t *testing.T, k *kept, name string) {
	t.Helper()
	h.setAction(t, k, name, api.ActionStopped, api.PhaseStopped)
}

// startAgain starts a server by the version that runs. It keeps its identity, and has a new run.
func (h *host) startAgain(t *testing.T, k *kept, name string) {
	t.Helper()
	before := k.had[name]
	h.setAction(t, k, name, api.ActionActive, api.PhaseActive)
	now := k.had[name]
	assert.True(t, now.UUID == before.UUID && now.MAC == before.MAC && now.ID == before.ID && now.Run != before.Run, "%s was %+v and is %+v", name, before, now)
}

func (h *host) setAction(t *testing.T, k *kept, name string, action api.Action, phase api.Phase) {
	t.Helper()
	h.update(t, k.vms[name], func(vm *api.VirtualMachine) { vm.Spec.Action = action })
	h.awaitPhase(t, k.vms[name], phase)
	k.phases[name], k.had[name] = phase, h.machine(t, k.vms[name])
}

// checkMandatory checks that this release refuses a record that it would misunderstand, by the name of the addition. The
// machine runs on, and so do all others.
func (h *host) checkMandatory(t *testing.T, k *kept) {
	t.Helper()
	t.Setenv("DROVER_NEXT_MUST_UNDERSTAND", `"mandatory"`)
	h.switchTo(t, h.next)
	h.stop(t, k, "mandatory")
	h.setAction(t, k, "mandatory", api.ActionActive, api.PhaseActive)
	h.switchTo(t, h.present)
	c := h.objects(t)
	assert.Eventually(t, "the record is refused", func(testing.TB) error {
		text, err := json.Marshal(h.get(t, c, k.vms["mandatory"]).Status)
		return errors.Join(err, assert.ErrorUnless(strings.Contains(string(text), `mustUnderstand has \"nextRelease\"`), "the status is %s", text))
	})
	assert.Equal(t, "the refused machine", h.machine(t, k.vms["mandatory"]), k.had["mandatory"])
	refused := k.phases["mandatory"]
	k.phases["mandatory"] = h.get(t, c, k.vms["mandatory"]).Status.Phase
	h.check(t, k)
	k.phases["mandatory"] = refused
}

// checkDataVersion checks that this release refuses the whole data dir once the next one has raised its version, and
// changes nothing in it. The next release goes on.
func (h *host) checkDataVersion(t *testing.T, k *kept) {
	t.Helper()
	t.Setenv("DROVER_NEXT_DATA_VERSION", "yes")
	h.switchTo(t, h.next)
	h.check(t, k)
	assert.NoError(t, h.running.Stop())
	_, err := framework.NewCluster(framework.ClusterOptions{Binary: h.present, DataDir: h.dir, WithController: true, Args: []string{"--vm-driver", "qemu,fake"}})
	assert.ErrorSays(t, "this release", err, "can be read from data version 2 on")
	h.start(t, h.next)
	h.check(t, k)
}

// end removes all servers by the next release.
func (h *host) end(t *testing.T) {
	if h.running == nil {
		return
	}
	if t.Failed() {
		t.Logf("drover up printed:\n%s", h.running.Output())
	}
	_ = h.running.Kill()
	if h.released != "" {
		framework.MustRunCommand(t, framework.CommandTimeout, nil, h.next, "retained", "delete", h.released, "--data-dir", h.dir, "--yes")
	}
	framework.MustRunCommand(t, framework.CommandTimeout, nil, h.next, "purge", "--data-dir", h.dir, "--yes", "--data")
}

// buildNext builds the next release: drover-machine, and drover with that in it.
func buildNext(t *testing.T) string {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	folder := framework.PublicDir(t)
	program := filepath.Join(folder, "drover-machine")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "standalone/internal/embedded/programs/drover-machine"): program}})
	assert.NoError(t, err)
	file := filepath.Join(folder, "overlay.json")
	assert.NoError(t, os.WriteFile(file, overlay, 0o600))
	flags := []string{"build", "-tags", "nextrelease", "-ldflags", "-s -w -X cloudnative.tw/drover/internal/format.Version=9.9.9"}
	env := []string{"CGO_ENABLED=0"}
	framework.MustRunCommand(t, framework.BuildTimeout, env, "go", append([]string{"-C", root}, append(flags, "-o", program, "./cmd/drover-machine")...)...)
	binary := filepath.Join(folder, "drover")
	framework.MustRunCommand(t, framework.BuildTimeout, env, "go", append([]string{"-C", filepath.Join(root, "standalone")}, append(flags, "-overlay", file, "-o", binary, ".")...)...)
	return binary
}

// buildNextGuest builds the guest of the next release, and returns its folder.
func buildNextGuest(t *testing.T) string {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	folder := framework.PublicDir(t)
	framework.MustRunCommand(t, framework.BuildTimeout, []string{"GUEST_TAG=nextrelease"}, filepath.Join(root, "hack", "guest.sh"), folder)
	return folder
}

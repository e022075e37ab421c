// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"io"
	"os"
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestOutputs checks that all output of commands goes through one function to the terminal.
func TestOutputs(t *testing.T) {
	t.Parallel()
	all := []*cobra.Command{Program{}.newRootCommand()}
	for ; len(all) > 0; all = all[1:] {
		all = append(all, all[0].Commands()...)
		if printable.Raw(all[0].OutOrStdout()) != io.Writer(os.Stdout) || printable.Raw(all[0].ErrOrStderr()) != io.Writer(os.Stderr) || all[0].OutOrStdout() == io.Writer(os.Stdout) {
			t.Errorf("%s writes to the terminal itself", all[0].CommandPath())
		}
	}
}

// TestNoImagesFromTheDataDir checks that the drivers know the folders of the program.
func TestNoImagesFromTheDataDir(t *testing.T) {
	t.Parallel()
	o := newUpOptions()
	o.UseDataDir("/data")
	own := o.Controller.OwnDirs
	assert.True(t, slices.Equal(own, []string{"/data"}), "the folders of the program are %q", own)
}

// TestPreviousHolderIsDead checks that the holder of the data dir does not wait for another
// drover up, but does for every other controller.
func TestPreviousHolderIsDead(t *testing.T) {
	t.Parallel()
	o := newControllerOptions()
	own, err := leader.Identity(o.HolderIdentity)
	assert.NoError(t, o.Validate())
	assert.True(t, err == nil && o.DeadHolder(own), "%q, %v: want it dead", own, err)
	other, err := leader.Identity("drover-up")
	assert.True(t, err == nil && !o.DeadHolder(other) && !o.DeadHolder(""), "%q, %v: want it alive", other, err)
}

// TestBindings checks that the status takes precedence over the annotation, which a user's
// manifest can change.
func TestBindings(t *testing.T) {
	t.Parallel()
	status := func(driver, id string) func(*api.VirtualMachineStatus) {
		return func(s *api.VirtualMachineStatus) { s.Binding = &api.Binding{Driver: driver, EngineID: id} }
	}
	scheme := runtime.NewScheme()
	assert.NoError(t, api.AddToScheme(scheme))
	bound, err := ListBindings(t.Context(), clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(
		framework.NewVM("a").UID("uid-a").Bound("docker/A/uid-a").Obj(), framework.NewVM("copy").UID("uid-b").Bound("docker/E/uid-a").Obj(),
		framework.NewVM("b").Bound("docker/A").Status(status("docker", "A")).Obj(),
		framework.NewVM("c").Bound("docker/A").Status(status("docker", "B")).Obj(), framework.NewVM("d").Status(status("qemu", "C")).Obj(),
		framework.NewVM("e").Status(func(s *api.VirtualMachineStatus) { s.Driver, s.Server = "docker", &api.ServerStatus{} }).Obj(), framework.NewVM("f").Obj(),
	).Build())
	want := []api.Binding{{Driver: "docker", EngineID: "A"}, {Driver: "docker", EngineID: "B"}, {Driver: "qemu", EngineID: "C"}}
	assert.True(t, err == nil && slices.Equal(bound, want), "got %+v, %v, want %+v", bound, err, want)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// TestImage runs the container image as a kubelet runs the pods of the Deployment: as an
// unprivileged user, without capabilities, on a read-only root file system.
func TestImage(t *testing.T) {
	tier.Full(t, "it builds the image and starts a cluster; TestAccount runs the same program with the same rights")
	t.Parallel()
	image := loadImage(t)
	w := testenv.Start(t)
	framework.RunKubectl(t, w.Kubeconfig, "apply", "-k", configPath("rbac"))

	id := runImage(t, image, testenv.WriteKubeconfig(t, accountUser(t, w)))
	vm := w.CreateVM(t, framework.NewVM("vm").Driver("fake"))
	w.WaitForVM(t, vm, framework.IsActive)
	w.DeleteVM(t, vm)
	w.WaitForDeletion(t, vm)

	docker(t, "stop", "--time=20", id) // process 1 of a container ignores signals unless it handles them
	assert.Equal(t, "the controller ended with code", testenv.InspectContainer(t, id).State.ExitCode, 0)
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, _ := framework.MustRunCommand(t, framework.CommandTimeout, nil, "docker", args...)
	return strings.TrimSpace(out)
}

// loadImage builds the image and loads it into the engine.
func loadImage(t *testing.T) string {
	t.Helper()
	out, tag := t.TempDir(), fmt.Sprintf("drover-test-controller:%d", os.Getpid())
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "go", "-C", filepath.Join(repositoryRoot, "hack", "image"), "run", ".",
		"--out", out, "--tag", tag, "--platforms", "linux/"+runtime.GOARCH)
	docker(t, "load", "--input", filepath.Join(out, "drover-controller-linux-"+runtime.GOARCH+".tar"))
	t.Cleanup(func() {
		assert.ReportError(t, exec.CommandContext(context.WithoutCancel(t.Context()), "docker", "image", "rm", "--force", tag).Run())
	})
	return tag
}

func runImage(t *testing.T, image, kubeconfig string) string {
	t.Helper()
	// The container's user is also unprivileged on the host, and must be able to read the file.
	assert.NoError(t, os.Chmod(kubeconfig, 0o644))
	id := docker(t, "create", "--network=host", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges",
		"--volume="+kubeconfig+":/kubeconfig:ro", "--env=POD_NAME=drover-controller-0", image,
		"--kubeconfig=/kubeconfig", "--vm-driver=fake", "--leader-elect", "--lease-lock-namespace="+namespace,
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	t.Cleanup(func() {
		if t.Failed() {
			out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "docker", "logs", id).CombinedOutput()
			t.Logf("the container printed, %v:\n%s", err, out)
		}
		testenv.RemoveContainer(t, id)
	})
	docker(t, "start", id)
	return id
}

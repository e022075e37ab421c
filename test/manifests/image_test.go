// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// TestImage runs the container image as a kubelet runs the Deployment's: as an
// unprivileged user, without capabilities, on a read-only root file system.
func TestImage(t *testing.T) {
	tier.Full(t, "it builds the image and starts a cluster; TestAccount runs the same program with the same rights")
	t.Parallel()
	docker := framework.DockerClient(t)
	image := loadImage(t, docker)
	w := testenv.Start(t)
	framework.RunKubectl(t, w.Kubeconfig, "apply", "-k", configPath("rbac"))

	id := runImage(t, docker, image, testenv.WriteKubeconfig(t, accountUser(t, w)))
	vm := w.CreateVM(t, framework.NewVM("vm").Driver("fake"))
	w.WaitForVM(t, vm, framework.IsActive)
	w.DeleteVM(t, vm)
	w.WaitForDeletion(t, vm)

	// It is process 1 there, for which signals have no default.
	within := 20
	if _, err := docker.ContainerStop(t.Context(), id, client.ContainerStopOptions{Timeout: &within}); err != nil {
		t.Fatal(err)
	}
	state := testenv.InspectContainer(t, id).State
	if state.ExitCode != 0 {
		t.Errorf("it ended with code %d", state.ExitCode)
	}
}

// loadImage builds the image and puts it into the engine.
func loadImage(t *testing.T, docker *client.Client) string {
	t.Helper()
	out, tag := t.TempDir(), fmt.Sprintf("drover-test-controller:%d", os.Getpid())
	platform := "linux-" + runtime.GOARCH
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "go", "-C", filepath.Join(repositoryRoot, "hack", "image"), "run", ".",
		"--out", out, "--tag", tag, "--platforms", "linux/"+runtime.GOARCH)
	file, err := os.Open(filepath.Join(out, "drover-controller-"+platform+".tar"))
	assert.NoError(t, err)
	defer func() { _ = file.Close() }()
	answer, err := docker.ImageLoad(t.Context(), file)
	assert.NoError(t, err)
	if _, err := io.Copy(io.Discard, answer); err != nil {
		t.Fatal(err)
	}
	_ = answer.Close()
	t.Cleanup(func() {
		_, err := docker.ImageRemove(context.WithoutCancel(t.Context()), tag, client.ImageRemoveOptions{Force: true})
		checkError(t, err)
	})
	return tag
}

func runImage(t *testing.T, docker *client.Client, image, kubeconfig string) string {
	t.Helper()
	// The container's user is unprivileged on the host too, and must be able to find
	// the file.
	assert.NoError(t, os.Chmod(kubeconfig, 0o644))
	made, err := docker.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{
			Image: image, Env: []string{"POD_NAME=drover-controller-0"},
			Cmd: []string{
				"--kubeconfig=/kubeconfig", "--vm-driver=fake", "--leader-elect", "--lease-lock-namespace=" + namespace,
				"--metrics-bind-address=0", "--health-probe-bind-address=0",
			},
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "host", ReadonlyRootfs: true, CapDrop: []string{"ALL"},
			SecurityOpt: []string{"no-new-privileges"}, Binds: []string{kubeconfig + ":/kubeconfig:ro"},
		},
	})
	assert.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the container printed:\n%s", containerLog(t, docker, made.ID))
		}
		testenv.RemoveContainer(t, made.ID)
	})
	if _, err := docker.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func containerLog(t *testing.T, docker *client.Client, id string) string {
	t.Helper()
	stream, err := docker.ContainerLogs(context.WithoutCancel(t.Context()), id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = stream.Close() }()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, stream); err != nil {
		return err.Error()
	}
	return out.String()
}

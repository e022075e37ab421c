// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// diskImage is a container disk with a Debian that lacks a boot loader.
const diskImage = "drover.test/containerdisks/debian:12"

// TestRelease follows "Three commands" of docs/cluster.md with the files of a release, until a user has logged in
// to a machine in a pod.
func TestRelease(t *testing.T) {
	tier.Full(t, "it builds a release and boots a Debian in a cluster of nodes; TestChartValues of test/manifests renders the chart")
	t.Parallel()
	dir := framework.BuildRelease(t)
	c := cluster.Start(t, cluster.Options{Nodes: replicas, Images: []string{
		framework.FindFile(t, dir, "drover-controller-image_*.tar"), framework.FindFile(t, dir, "drover-machine-image_*.tar"), writeDisk(t),
	}})
	_, errs, err := framework.TryHelm(t, c.Kubeconfig, "install", "drover", framework.FindFile(t, dir, "drover-*.tgz"),
		"--namespace", namespace, "--create-namespace", "--wait", "--timeout", stepTimeout.String(), "--set", "vmDriver=pod")
	assert.Require(t, err == nil, "helm install: %v: %s", err, errs)

	key := filepath.Join(t.TempDir(), "key")
	framework.MustRunCommand(t, framework.CommandTimeout, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	program := filepath.Join(t.TempDir(), "kubectl-vm")
	assert.NoError(t, framework.BuildProgram(program, "cmd/kubectl-vm"))
	kubectlVM := func(args ...string) string {
		out, _ := framework.MustRunCommand(t, framework.BuildTimeout, []string{"KUBECONFIG=" + c.Kubeconfig}, program, args...)
		return out
	}
	manifest := filepath.Join(t.TempDir(), "deb.json")
	bootByKernel(t, manifest, kubectlVM("create", "deb", "--image", "oci://"+diskImage, "--memory", "1G", "--disk", "3G",
		"--port", "22", "--probe", "22", "--ssh-key", key+".pub", "--dry-run=client", "-o", "json"))
	framework.RunKubectl(t, c.Kubeconfig, "apply", "-f", manifest)
	drover, err := framework.DroverBinary()
	assert.NoError(t, err)
	if _, errs, err := framework.RunCommand(t, framework.BuildTimeout, []string{"KUBECONFIG=" + c.Kubeconfig}, drover,
		"kubectl", "wait", "vm/deb", "--for=condition=Ready", "--timeout=9m"); err != nil {
		t.Fatalf("the machine is not ready: %v: %s\n%s", err, errs, kubectlVM("explain", "deb"))
	}
	assert.Eventually(t, "a user logs in", func(t testing.TB) error {
		out, errs, err := framework.RunCommand(t, framework.CommandTimeout, []string{"KUBECONFIG=" + c.Kubeconfig}, program,
			"ssh", "debian@deb", "-i", key, "--", "hostname")
		return assert.ErrorUnless(err == nil && out == "deb\n", "ssh printed %q, %s: %v", out, errs, err)
	})
	kubectlVM("delete", "deb", "--yes")
}

// bootByKernel writes the manifest of a VM that boots the kernel in its container disk.
func bootByKernel(t *testing.T, path, manifest string) {
	t.Helper()
	vm := &api.VirtualMachine{}
	assert.NoError(t, json.Unmarshal([]byte(manifest), vm))
	vm.Spec.Image.PullPolicy = api.PullNever
	vm.Spec.Image.Kernel = &api.Kernel{Source: "/vmlinuz", Initrd: "/initrd.img", Cmdline: framework.DebianCmdline}
	content, err := json.Marshal(vm)
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(path, content, 0o600))
}

// writeDisk writes the archive of diskImage.
func writeDisk(t *testing.T) string {
	t.Helper()
	guest, dir := framework.DebianGuest(t), t.TempDir()
	disk, archive := filepath.Join(dir, "disk.qcow2"), filepath.Join(dir, "disk.tar")
	framework.RunQEMUImg(t, "convert", "-f", "raw", "-O", "qcow2", filepath.Join(guest, "debian.img"), disk)
	assert.NoError(t, cluster.WriteImage(archive, diskImage, map[string]string{
		"vmlinuz": filepath.Join(guest, "vmlinuz"), "initrd.img": filepath.Join(guest, "initrd.img"), "disk/disk.qcow2": disk,
	}, "/none"))
	return archive
}

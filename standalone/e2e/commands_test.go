// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestKubectlDefaultsToTheDataDir(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "missing")
	for name, tc := range map[string]struct {
		env  []string
		args []string
	}{
		"data dir":                {[]string{"DROVER_DATA_DIR=" + shared.DataDir}, nil},
		"KUBECONFIG goes before":  {[]string{"DROVER_DATA_DIR=" + other, "KUBECONFIG=" + shared.Kubeconfig}, nil},
		"a flag goes before":      {[]string{"DROVER_DATA_DIR=" + other}, []string{"--kubeconfig", shared.Kubeconfig}},
		"a flag goes before both": {[]string{"KUBECONFIG=" + other}, []string{"--kubeconfig=" + shared.Kubeconfig}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"kubectl", "get", "namespace", "kube-system", "-o", "name"}, tc.args...)
			got := runDrover(t, "", tc.env, args...)
			if got.code != 0 || got.out != "namespace/kube-system\n" || got.errOut != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestKubectlDoesNotFallBackToAnotherCluster checks that a command typed while no Drover
// runs does not reach the cluster in ~/.kube/config.
func TestKubectlDoesNotFallBackToAnotherCluster(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	config, err := os.ReadFile(shared.Kubeconfig)
	assert.NoError(t, errors.Join(err, os.Mkdir(filepath.Join(home, ".kube"), 0o700), os.WriteFile(filepath.Join(home, ".kube", "config"), config, 0o600)))
	missing := filepath.Join(t.TempDir(), "missing")
	got := runDrover(t, "", []string{"HOME=" + home, "DROVER_DATA_DIR=" + missing}, "kubectl", "get", "namespaces")
	if got.code == 0 || got.out != "" || !strings.Contains(got.errOut, "run drover up first") {
		t.Errorf("%+v", got)
	}
}

func TestKubectlExitCodes(t *testing.T) {
	t.Parallel()
	env := []string{"KUBECONFIG=" + shared.Kubeconfig}
	if got := runDrover(t, "", env, "kubectl", "get", "configmap", "missing"); got.code != 1 || !strings.Contains(got.errOut, "NotFound") {
		t.Errorf("missing object: %+v", got)
	}
	manifest := "{apiVersion: v1, kind: ConfigMap, metadata: {name: differs}}"
	if got := runDrover(t, manifest, env, "kubectl", "apply", "-f", "-"); got.code != 0 {
		t.Errorf("apply: %+v", got)
	}
}

// TestVMUsesTheDataDir checks that drover vm reaches this Drover, and has the exit codes
// of kubectl vm.
func TestVMUsesTheDataDir(t *testing.T) {
	t.Parallel()
	env := []string{"DROVER_DATA_DIR=" + shared.DataDir}
	got := runDrover(t, "", env, "vm", "list", "-n", "kube-public")
	if got.code != 0 || got.out != "" || got.errOut != "No VMs found in namespace \"kube-public\".\n" {
		t.Errorf("list: %+v", got)
	}
	got = runDrover(t, "", env, "vm", "explain", "missing", "-n", "kube-public")
	if got.code != 3 || got.errOut != "error: virtualmachines \"missing\" not found in namespace \"kube-public\"\n" {
		t.Errorf("explain: %+v", got)
	}
	got = runDrover(t, "", []string{"DROVER_DATA_DIR=" + filepath.Join(t.TempDir(), "missing")}, "vm", "list")
	if got.code != 1 || got.out != "" || !strings.Contains(got.errOut, "run drover up first") {
		t.Errorf("without a Drover: %+v", got)
	}
	if got = runDrover(t, "", env, "__complete", "vm", "sto"); !strings.HasPrefix(got.out, "stop\t") {
		t.Errorf("completion: %+v", got)
	}
}

// checkPurge checks that purge removes what a person has confirmed.
func checkPurge(t *testing.T, c *framework.Cluster, id string) {
	t.Helper()
	for name, answer := range map[string]string{"no": "n\n", "enter": "\n", "no answer": ""} {
		got := runPurge(t, c, answer)
		if !strings.Contains(got.out, id) || !strings.Contains(got.out, "Remove 1 server? [y/N]") {
			t.Errorf("%s: it does not say what it would remove: %+v", name, got)
		}
		assertRefused(t, got, "drover: nothing was removed")
	}
	assertPurges(t, c, "Removed: 1 server.", "y\n")
	assertPurges(t, c, "No servers to remove.", "")
}

func runPurge(t *testing.T, c *framework.Cluster, answer string, args ...string) commandResult {
	t.Helper()
	return runDrover(t, answer, nil, append([]string{"purge", "--data-dir", c.DataDir}, args...)...)
}

func assertPurges(t *testing.T, c *framework.Cluster, want, answer string, args ...string) {
	t.Helper()
	if got := runPurge(t, c, answer, args...); got.code != 0 || got.errOut != "" || !strings.Contains(got.out, want) {
		t.Errorf("%+v, want %s", got, want)
	}
}

// waitForActiveServer returns the ID of the server once the VM runs on one other than
// the given one.
func waitForActiveServer(t *testing.T, c *framework.Cluster, not string) string {
	t.Helper()
	objects := objectsFor(t, c.Config)
	var server api.ServerStatus
	assert.Eventually(t, "the VM is Active", func(t testing.TB) error {
		vm := vmOf(t, objects, "test-vm")
		server = ptr.Deref(vm.Status.Server, api.ServerStatus{})
		if vm.Status.Phase != api.PhaseActive || server.ID == "" || server.ID == not {
			return errors.New(string(vm.Status.Phase) + " on server " + server.ID)
		}
		return nil
	})
	return server.ID
}

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

// TestClients checks which cluster drover kubectl and drover vm reach, and that they have the exit codes
// of kubectl and kubectl vm.
func TestClients(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "missing")
	dir, config := "DROVER_DATA_DIR="+shared.DataDir, "KUBECONFIG="+shared.Kubeconfig
	const get, found = "kubectl get namespace kube-system -o name", "namespace/kube-system\n"
	for name, tc := range map[string]struct {
		env         []string
		line, stdin string
		code        int
		out, errOut string // the beginning or, if it ends with a line, all
	}{
		"data dir":                  {env: []string{dir}, line: get, out: found},
		"KUBECONFIG goes before":    {env: []string{"DROVER_DATA_DIR=" + other, config}, line: get, out: found},
		"a flag goes before":        {env: []string{"DROVER_DATA_DIR=" + other}, line: get + " --kubeconfig " + shared.Kubeconfig, out: found},
		"a flag goes before both":   {env: []string{"KUBECONFIG=" + other}, line: get + " --kubeconfig=" + shared.Kubeconfig, out: found},
		"kubectl, a missing object": {env: []string{config}, line: "kubectl get configmap missing", code: 1, errOut: "Error from server (NotFound)"},
		"kubectl, with input": {
			env: []string{config}, line: "kubectl apply -f -", stdin: "{apiVersion: v1, kind: ConfigMap, metadata: {name: differs}}",
			out: "configmap/differs created\n",
		},
		"vm": {env: []string{dir}, line: "vm list -n kube-public", errOut: "No VMs found in namespace \"kube-public\".\n"},
		"vm, a missing object": {
			env: []string{dir}, line: "vm explain missing -n kube-public", code: 3,
			errOut: "error: virtualmachines \"missing\" not found in namespace \"kube-public\"\n",
		},
		"vm, no Drover":  {env: []string{"DROVER_DATA_DIR=" + other}, line: "vm list", code: 1, errOut: "drover: "},
		"vm, completion": {env: []string{dir}, line: "__complete vm sto", out: "stop\t", errOut: "Completion ended"},
	} {
		t.Run(name, func(t *testing.T) {
			got := runDrover(t, tc.stdin, tc.env, strings.Fields(tc.line)...)
			assert.True(t, got.code == tc.code && isText(got.out, tc.out) && isText(got.errOut, tc.errOut), "%+v, want %+v", got, tc)
			assert.True(t, name != "vm, no Drover" || strings.Contains(got.errOut, "run drover up first"), "it does not say what to do: %s", got.errOut)
		})
	}
}

// isText compares a text with another one, or with its beginning if that ends within a line.
func isText(got, want string) bool {
	return got == want || want != "" && !strings.HasSuffix(want, "\n") && strings.HasPrefix(got, want)
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
	assert.True(t, got.code != 0 && got.out == "" && strings.Contains(got.errOut, "run drover up first"), "%+v", got)
}

// checkPurge checks that purge removes what a person has confirmed.
func checkPurge(t *testing.T, c *framework.Cluster, id string) {
	t.Helper()
	for name, answer := range map[string]string{"no": "n\n", "enter": "\n", "no answer": ""} {
		got := runPurge(t, c, answer)
		assert.True(t, strings.Contains(got.out, id) && strings.Contains(got.out, "Remove 1 server? [y/N]"),
			"%s: it does not say what it would remove: %+v", name, got)
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
	got := runPurge(t, c, answer, args...)
	assert.True(t, got.code == 0 && got.errOut == "" && strings.Contains(got.out, want), "%+v, want %s", got, want)
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

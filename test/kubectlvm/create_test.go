// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestCreateAndWait(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	r := u.run("create", "web", "--driver=fake", "--cpu=500m", "--memory=64Mi", "--disk=1G", "--port=18080:80", "--labels=app=web,tier=front", "--restart-policy=OnFailure", "--wait")
	assert.Require(t, r.code == 0, "ended with %d: %s", r.code, r.errs)
	wantTexts(t, r.out, "virtualmachine.cloudnative.tw/web created\n", "virtualmachine.cloudnative.tw/web is ready after ", "ports 18080:80\n")
	assert.True(t, !strings.Contains(r.out+r.errs, "\x1b"), "there are escape sequences without a terminal: %q", r.out+r.errs)
	vm := u.getVM("web")
	assert.ReportError(t, framework.IsActive(vm))
	cpu, memory, disk := vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory], vm.Spec.Resource[api.ResourceRootDisk]
	if cpu.String() != "500m" || memory.String() != "64Mi" || disk.String() != "1G" || vm.Spec.RestartPolicy != api.RestartOnFailure || vm.Labels["tier"] != "front" {
		t.Errorf("the VM is %+v, labels %v", vm.Spec, vm.Labels)
	}
	u.mustFail(1, []string{`error: virtualmachines "web" already exists in namespace "` + u.namespace + `"`}, "create", "web", "--cpu=4")
	cpu = u.getVM("web").Spec.Resource[api.ResourceCPU]
	assert.True(t, cpu.String() == "500m", "an existing VM was changed: %s CPUs", &cpu)
}

func TestCreateAppliesServerSide(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	for _, entry := range u.getVM("web").ManagedFields {
		if entry.Manager == "kubectl-vm" && entry.Operation == metav1.ManagedFieldsOperationApply {
			return
		}
	}
	t.Errorf("no fields are applied by kubectl-vm: %+v", u.getVM("web").ManagedFields)
}

func TestDryRunCreatesNothing(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	data := writeFile(t, "user-data", "#cloud-config\n")
	manifest := u.mustRun("create", "web", "--driver=fake", "--image=guest", "--port=80", "--user-data="+data, "--dry-run=client", "-o", "yaml")
	wantTexts(t, manifest, "kind: Secret\n", "kind: VirtualMachine\n", "name: web-user-data\n")
	for _, text := range []string{"status", "creationTimestamp", "null"} {
		assert.True(t, !strings.Contains(manifest, text), "the manifest has %q:\n%s", text, manifest)
	}
	assert.Equal(t, "printed", u.mustRun("create", "web", "--driver=fake", "--dry-run=client"), "virtualmachine.cloudnative.tw/web created (dry run)\n")
	assert.Equal(t, "printed",
		u.mustRun("create", "web", "--driver=fake", "--user-data="+data, "--dry-run=server", "--wait"), "virtualmachine.cloudnative.tw/web created (server dry run)\n")
	u.mustFail(1, []string{"--cpu \"nope\""}, "create", "web", "--cpu=nope", "--dry-run=client")
	u.mustFail(1, []string{"must be a quantity from 10m to 4096"}, "create", "web", "--cpu=9999", "--dry-run=server")
	vm, secrets := u.findVM("web"), u.listSecrets()
	assert.Require(t, vm == nil && len(secrets) == 0, "a dry run created %v and %d Secrets", vm, len(secrets))
	environment.MustRunKubectl(t, manifest, "apply", "--namespace="+u.namespace, "--filename=-")
	u.waitFor("web", framework.IsActive)
}

// writeFile writes a file for the test.
func writeFile(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// listSecrets returns the Secrets of the namespace.
func (u *user) listSecrets() []corev1.Secret {
	u.t.Helper()
	list, err := environment.KubeClient.CoreV1().Secrets(u.namespace).List(u.t.Context(), metav1.ListOptions{})
	assert.NoError(u.t, err)
	return list.Items
}

func TestUserDataIsRemovedWithTheVM(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.stdin = strings.NewReader("#cloud-config\npassword: hidden\n")
	vm := u.createVM("web", "--user-data=-", "--network-data="+writeFile(t, "network", "version: 2\n"))
	secrets := u.listSecrets()
	if len(secrets) != 1 || string(secrets[0].Data["user-data"]) != "#cloud-config\npassword: hidden\n" || string(secrets[0].Data["network-data"]) != "version: 2\n" {
		t.Fatalf("the Secrets are %+v", secrets)
	}
	ref := vm.Spec.UserData.SecretKeyRef
	assert.True(t, ref != nil && ref.Name == secrets[0].Name && ref.Key == "user-data", "the VM's user-data is %+v", vm.Spec.UserData)
	for _, e := range environment.ListEvents(t, vm) {
		assert.True(t, e.Reason != api.ReasonSecretUnavailable, "the VM came before its Secret: %s", e.Note)
	}
	u.mustRun("delete", "web", "--yes")
	assert.Eventually(t, "the Secret is removed", func(testing.TB) error {
		left := u.listSecrets()
		return assert.ErrorUnless(len(left) == 0, "%d are left", len(left))
	})
}

func TestRefusedVMLeavesNoSecret(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	r := u.mustFail(1, []string{"cpu is 9999"}, "create", "web", "--cpu=9999", "--user-data="+writeFile(t, "data", "password: hidden"))
	assert.True(t, !strings.Contains(r.out+r.errs, "hidden"), "the user-data is printed: %s", r.errs)
	left := u.listSecrets()
	assert.True(t, len(left) == 0, "%d Secrets are left", len(left))
}

func TestCreateEndsWhenItStalls(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.mustFail(2, []string{"web created", "web is not ready: Failed, Invalid", "image.source", "What to do:", " edit vm web"},
		"create", "web", "--driver=fake", "--image=an image with spaces", "--wait")
}

func TestCreateTimesOut(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	r := u.createFailing("--wait", "--timeout=10s") // in which it fails at least once
	if r.code != 1 && r.code != 2 {                 // 2 after many failures
		t.Errorf("it ended with %d", r.code)
	}
	wantTexts(t, r.out, "virtualmachine.cloudnative.tw/failing created\n")
	wantTexts(t, r.errs, "out of luck (next try in ", "error: failing: timed out after 10s", "failing is not ready: Failed,", "What to do:")
}

// TestWaitSurvivesAnOutage cuts the connection to the API server during a wait.
func TestWaitSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	proxy := environment.NewAPIProxy(t)
	environment.CreateVM(t, framework.NewVM("web").Namespace(u.namespace).Driver("fake").UserDataSecret("later", "user-data"))
	u.waitFor("web", framework.HasPhase(api.PhaseFailed, api.ReasonSecretUnavailable))
	u.mustFail(2, []string{"SecretUnavailable", " create secret"}, "explain", "web")
	u.flags = []string{"--kubeconfig=" + proxy.Kubeconfig}
	wait := u.start(t.Context(), "start", "web", "--wait")
	wait.out.waitFor(t, "web unchanged")
	proxy.Disconnect()
	environment.MustRunKubectl(t, "", "create", "secret", "generic", "later", "--namespace="+u.namespace, "--from-literal=user-data=x")
	u.waitFor("web", framework.IsActive)
	select {
	case code := <-wait.exit:
		t.Fatalf("it ended during the outage with %d: %s", code, wait.errs.String())
	default:
	}
	proxy.Restore()
	code := wait.waitForExit(t)
	assert.True(t, code == 0 && wait.errs.String() == "", "it ended with %d: %s", code, wait.errs.String())
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

func vmManifest(name, spec string) string {
	return fmt.Sprintf("{apiVersion: cloudnative.tw/v1alpha1, kind: VirtualMachine, metadata: {name: %s}, spec: %s}", name, spec)
}

// TestInvalidInput checks that errors shown to a user of kubectl have the field, the
// value and what is allowed. Tests beside the CRD, in config/crd, cover all rules.
func TestInvalidInput(t *testing.T) {
	t.Parallel()
	ns := environment.CreateNamespace(t)
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"cpu 0":          {`{resource: {cpu: 0, memory: 1G}}`, []string{"spec.resource", "cpu is 0", "from 10m to 4096"}},
		"unknown field":  {`{resource: {cpu: 1, memory: 1G}, cpus: 2}`, []string{`unknown field "spec.cpus"`}},
		"unknown action": {`{action: run, resource: {cpu: 1, memory: 1G}}`, []string{"spec.action", `"run"`, `"active", "stopped", "paused"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, message, err := environment.RunKubectl(t, vmManifest("vm", tc.spec), "apply", "-n", ns, "-f", "-")
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(message, want) {
					t.Errorf("kubectl says %q, want %q in it", message, want)
				}
			}
		})
	}
	list, err := environment.VMClient.CloudnativeV1alpha1().VirtualMachines(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d VMs were made, error %v", len(list.Items), err)
	}
}

func TestUnknownFieldWarning(t *testing.T) {
	t.Parallel()
	text := vmManifest("vm", `{driver: fake, resource: {cpu: 1, memory: 1G}, cpus: 2}`)
	_, warning, err := environment.RunKubectl(t, text, "create", "-n", environment.CreateNamespace(t), "--validate=warn", "-f", "-")
	if err != nil || !strings.Contains(warning, "Warning:") || !strings.Contains(warning, `unknown field "spec.cpus"`) {
		t.Errorf("error %v, kubectl says %q", err, warning)
	}
}

func TestUnavailableDriver(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, framework.NewVM("vm").Namespace(environment.CreateNamespace(t)).Driver("xen"))
	vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonUnknownDriver),
		framework.HasMessage("xen"), framework.HasMessage("docker, fake"),
		framework.HasCondition(api.ConditionStalled, metav1.ConditionTrue), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
	environment.WaitForEvent(t, vm, api.ReasonUnknownDriver)
	environment.DeleteVM(t, vm)
	environment.WaitForDeletion(t, vm)
}

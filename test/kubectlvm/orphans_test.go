// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testOrphans lets an administrator, who lacks access to the engine's host, remove an orphan that
// the controller only reports, and look at a released server.
func testOrphans(t *testing.T, r *replicas) {
	env, u := r.Environment, newUserOf(t, r.Environment)
	owned := env.CreateActiveVM(t, framework.NewVM("owned").Namespace(u.namespace).Driver("fake"))
	kept := env.CreateActiveVM(t, framework.NewVM("kept").Namespace(u.namespace).Driver("fake").DeletionPolicy(api.DeletionRetain))
	env.DeleteVM(t, kept)
	env.WaitForDeletion(t, kept)
	u.checkNoOrphans()
	orphan := makeOrphan(t, env, framework.NewVM("orphan").Namespace(u.namespace).Driver("fake"))

	out := u.mustRun("orphans", "list")
	wantTexts(t, out, "UID ", string(orphan.UID), u.namespace+"/orphan")
	assert.True(t, !strings.Contains(out, string(owned.UID)) && !strings.Contains(out, string(kept.UID)),
		"servers with an owner and released ones are listed:\n%s", out)
	wantTexts(t, u.mustRun("orphans", "list", "-o", "json"), `"uid": "`+string(orphan.UID)+`"`)
	wantTexts(t, u.mustRun("retained", "list"), u.namespace+"/kept")
	u.mustFail(1, []string{"belongs to the VirtualMachine " + u.namespace + "/owned"}, "orphans", "delete", string(owned.UID), "--yes")
	u.mustFail(1, []string{"no terminal to ask on"}, "orphans", "delete", string(orphan.UID))
	wantTexts(t, u.mustRun("orphans", "delete", string(orphan.UID), "--yes"), "Removed: fake server ", u.namespace+"/orphan")
	u.checkNoOrphans()
	assert.True(t, env.ReadFakeServer(t, orphan.UID) == nil && env.ReadFakeServer(t, owned.UID) != nil, "the orphan was not removed, or another server was")
	approvals, err := env.KubeClient.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), streams.OrphanApprovalsName, metav1.GetOptions{})
	assert.True(t, err == nil && len(approvals.Data) == 0, "the remaining approvals are %v, %v", approvals.Data, err)
	checkRightToListServers(t, r, u)
}

// makeOrphan removes the finalizer of a VM and deletes the VM, so that its server remains. It retries
// if the controller has put the finalizer back in between.
func makeOrphan(t *testing.T, env *testenv.Environment, b *framework.VMBuilder) *api.VirtualMachine {
	t.Helper()
	for range 100 {
		vm := env.CreateActiveVM(t, b)
		env.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Finalizers = nil })
		env.DeleteVM(t, vm)
		env.WaitForDeletion(t, vm)
		if env.ReadFakeServer(t, vm.UID) != nil {
			return vm
		}
	}
	t.Fatal("the controller puts back the finalizer before each deletion")
	return nil
}

func (u *user) checkNoOrphans() {
	u.t.Helper()
	if got := u.mustRun("orphans", "list"); got != "Every server has a VirtualMachine.\n" {
		u.t.Errorf("orphans are:\n%s", got)
	}
}

// checkRightToListServers checks that Drover's roles do not permit to list the servers of all
// namespaces, and that the right to list them does.
func checkRightToListServers(t *testing.T, r *replicas, u *user) {
	t.Helper()
	const name = "reviewer"
	r.Bind(t, "", "admin", testenv.Person(name))
	other := r.signIn(t, u, name)
	other.mustFail(1, []string{`cannot list resource "virtualmachines/servers"`, "at the cluster scope"}, "orphans", "list")
	r.CreateRole(t, name, rbacv1.PolicyRule{
		APIGroups: []string{api.SchemeGroupVersion.Group}, Resources: []string{"virtualmachines/" + streams.Servers}, Verbs: []string{"list"},
	})
	r.Bind(t, "", name, testenv.Person(name))
	other.eventuallyRun("orphans", "list")
}

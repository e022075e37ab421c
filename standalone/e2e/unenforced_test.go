// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/standalone/internal/preset"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// acted are the kinds on whose objects kube-apiserver, kube-controller-manager or Drover act, or that are data for
// those who write them.
var acted = []string{
	"configmaps", "events", "namespaces", "resourcequotas", "secrets", "serviceaccounts", "events.events.k8s.io", "leases.coordination.k8s.io",
	"mutatingadmissionpolicies.admissionregistration.k8s.io", "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
	"mutatingwebhookconfigurations.admissionregistration.k8s.io", "validatingadmissionpolicies.admissionregistration.k8s.io",
	"validatingadmissionpolicybindings.admissionregistration.k8s.io", "validatingwebhookconfigurations.admissionregistration.k8s.io",
	"customresourcedefinitions.apiextensions.k8s.io", "apiservices.apiregistration.k8s.io",
	"selfsubjectreviews.authentication.k8s.io", "tokenreviews.authentication.k8s.io",
	"localsubjectaccessreviews.authorization.k8s.io", "selfsubjectaccessreviews.authorization.k8s.io",
	"selfsubjectrulesreviews.authorization.k8s.io", "subjectaccessreviews.authorization.k8s.io",
	"flowschemas.flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
	"clusterrolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io",
	"virtualmachines.cloudnative.tw",
	"bindings", // it binds a Pod, and there is none
}

// refused has an object of each kind that is refused, and the text of the refusal.
var refused = map[string]struct{ manifest, says string }{
	"endpoints":                         {`{apiVersion: v1, kind: Endpoints, subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 80}]}]}`, "kubectl vm port-forward"},
	"limitranges":                       {`{apiVersion: v1, kind: LimitRange, spec: {limits: [{type: Container, max: {cpu: 1}}]}}`, "count/virtualmachines.cloudnative.tw"},
	"nodes":                             {`{apiVersion: v1, kind: Node}`, "kubectl vm list"},
	"persistentvolumeclaims":            {`{apiVersion: v1, kind: PersistentVolumeClaim, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`, "spec.volumes"},
	"persistentvolumes":                 {`{apiVersion: v1, kind: PersistentVolume, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /tmp}}}`, "spec.volumes"},
	"pods":                              {`{apiVersion: v1, kind: Pod, spec: {containers: [{name: c, image: i}]}}`, "Create a VirtualMachine"},
	"podtemplates":                      {`{apiVersion: v1, kind: PodTemplate, template: {spec: {containers: [{name: c, image: i}]}}}`, "Create a VirtualMachine"},
	"replicationcontrollers":            {`{apiVersion: v1, kind: ReplicationController, spec: {replicas: 1, selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`, "Create a VirtualMachine"},
	"services":                          {`{apiVersion: v1, kind: Service, spec: {ports: [{port: 80}]}}`, "spec.ports"},
	"endpointslices.discovery.k8s.io":   {`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: [{addresses: [192.0.2.1]}]}`, "spec.ports"},
	"ingressclasses.networking.k8s.io":  {`{apiVersion: networking.k8s.io/v1, kind: IngressClass, spec: {controller: example.com/c}}`, "spec.ports"},
	"ingresses.networking.k8s.io":       {`{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}}`, "spec.ports"},
	"ipaddresses.networking.k8s.io":     {`{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: 10.0.0.9}, spec: {parentRef: {resource: services, namespace: default, name: s}}}`, "spec.ports"},
	"networkpolicies.networking.k8s.io": {`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {podSelector: {}}}`, "--qemu-egress"},
	"servicecidrs.networking.k8s.io":    {`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, spec: {cidrs: [10.9.0.0/24]}}`, "spec.ports"},
}

// TestEveryKindIsActedOnOrRefused checks that of all kinds that are served and can be created, each is one that has
// an effect here, or is refused with another way to do it.
func TestEveryKindIsActedOnOrRefused(t *testing.T) {
	t.Parallel()
	c := objectsFor(t, shared.Config)
	ns := newNamespace(t, c)
	waitForPolicies(t, client.NewDryRunClient(c), ns)
	for _, name := range creatableKinds(t) {
		if slices.Contains(acted, name) {
			continue
		}
		r, known := refused[name]
		if !known {
			t.Errorf("%s is served: add it to those that are acted on, or refuse it", name)
			continue
		}
		assertRefusal(t, name, c.Create(t.Context(), objectOf(t, r.manifest, ns)), r.says)
	}
}

// waitForPolicies waits until the policies have an effect, which they get a moment after a start.
func waitForPolicies(t *testing.T, dry client.Client, ns string) {
	t.Helper()
	for _, object := range []client.Object{newQuota(ns, "cpu"), objectOf(t, refused["limitranges"].manifest, ns)} {
		assert.Eventually(t, "the policies have an effect", func(testing.TB) error {
			copied, _ := object.DeepCopyObject().(client.Object)
			if err := dry.Create(t.Context(), copied); !apierrors.IsForbidden(err) {
				return fmt.Errorf("got %w, want a refusal", err)
			}
			return nil
		})
	}
}

// creatableKinds returns the resources that the API serves and that can be created.
func creatableKinds(t *testing.T) (names []string) {
	t.Helper()
	_, lists, err := clientFor(t, shared.Config).Discovery().ServerGroupsAndResources()
	assert.NoError(t, err)
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		for _, r := range list.APIResources {
			name := r.Name
			if found {
				name += "." + group
			}
			isTestCRD := group == "example.com" // of another test
			if slices.Contains(r.Verbs, "create") && !strings.Contains(r.Name, "/") && !isTestCRD {
				names = append(names, name)
			}
		}
	}
	assert.Require(t, len(names) >= len(refused), "only %v are served", names)
	return names
}

func objectOf(t *testing.T, manifest, ns string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	assert.NoError(t, yaml.Unmarshal([]byte(manifest), object))
	if object.GetName() == "" {
		object.SetName("refused")
	}
	object.SetNamespace(ns)
	return object
}

// assertRefusal requires that a policy of Drover's has refused something.
func assertRefusal(t *testing.T, name string, err error, message string) {
	t.Helper()
	assert.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "'drover-unenforced-") && strings.Contains(err.Error(), message),
		"%s: got %v, want the refusal of a policy that says %q", name, err, message)
}

func newQuota(ns string, hard ...corev1.ResourceName) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for _, name := range hard {
		q.Spec.Hard[name] = resource.MustParse("1")
	}
	return q
}

// TestQuotaHolds checks that a new ResourceQuota is enforced soon, that a deletion frees what the object took, and
// that a changed quota counts.
func TestQuotaHolds(t *testing.T) {
	t.Parallel()
	c := objectsFor(t, shared.Config)
	ns := newNamespace(t, c)
	first := create(t, c, framework.NewVM("first").Namespace(ns).Obj())
	quota := newQuota(ns, "count/virtualmachines.cloudnative.tw")
	createCounted(t, c, quota, 1)
	second := framework.NewVM("second").Namespace(ns)
	waitForRefusal(t, c, second.Obj())
	assertExceeded(t, c.Create(t.Context(), second.Obj()))
	assert.NoError(t, c.Update(t.Context(), first)) // an update of an existing object takes nothing

	assert.NoError(t, c.Delete(t.Context(), first))
	assert.Eventually(t, "the deletion makes room", func(testing.TB) error { return c.Create(t.Context(), second.Obj()) })
	assertExceeded(t, c.Create(t.Context(), framework.NewVM("third").Namespace(ns).Obj()))

	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hard":{"count/virtualmachines.cloudnative.tw":"2"}}}`))
	assert.NoError(t, c.Patch(t.Context(), quota, patch))
	assert.Eventually(t, "the larger quota counts", func(testing.TB) error {
		return c.Create(t.Context(), framework.NewVM("third").Namespace(ns).Obj())
	})
	log, err := os.ReadFile(filepath.Join(shared.DataDir, "logs", "drover.log"))
	assert.NoError(t, err)
	for line := range strings.Lines(string(log)) {
		isProblem := strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W")
		if isProblem && (strings.Contains(line, "resource.k8s.io") || strings.Contains(line, "ResourceClaim") || strings.Contains(line, "DeviceClass")) {
			t.Errorf("the quota controller asks for kinds that are not served: %s", line)
		}
	}
}

// createCounted creates a quota and waits until the controller has counted want objects. The controller may count before
// its informers have seen the newest objects, and would count again after five minutes: then the quota is created again.
func createCounted(t *testing.T, c client.Client, quota *corev1.ResourceQuota, want int64) {
	t.Helper()
	create(t, c, quota.DeepCopy())
	assert.Eventually(t, "the quota is counted", func(testing.TB) error {
		var present corev1.ResourceQuota
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(quota), &present); err != nil {
			return err
		}
		for name := range quota.Spec.Hard {
			used, found := present.Status.Used[name]
			if found && used.Value() == want {
				continue
			}
			err := fmt.Errorf("its status is %v", present.Status)
			if found {
				err = errors.Join(err, c.Delete(t.Context(), &present), c.Create(t.Context(), quota.DeepCopy()))
			}
			return err
		}
		return nil
	})
}

// waitForRefusal waits until the quota is enforced: the API server reads quotas from an informer, which may see the
// status later than the test. A dry run takes nothing from the quota.
func waitForRefusal(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	assert.Eventually(t, "the quota is enforced", func(testing.TB) error {
		err := c.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		if err == nil {
			return errors.New("a dry run is accepted")
		}
		assertExceeded(t, err)
		return nil
	})
}

func assertExceeded(t *testing.T, err error) {
	t.Helper()
	assert.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: quota"), "got %v, want that the quota is exceeded", err)
}

// TestQuotasOfOtherThings checks that a quota is accepted only for kinds that it can count here.
func TestQuotasOfOtherThings(t *testing.T) {
	t.Parallel()
	c := objectsFor(t, shared.Config)
	ns := newNamespace(t, c)
	dry := client.NewDryRunClient(c)
	waitForPolicies(t, dry, ns)
	for _, name := range []corev1.ResourceName{
		"configmaps", "secrets", "resourcequotas", "count/secrets", "count/serviceaccounts", "count/leases.coordination.k8s.io",
		"count/virtualmachines.cloudnative.tw", "count/things.example.com", "count/httproutes.gateway.networking.k8s.io",
	} {
		assert.ErrorIs(t, fmt.Sprintf("of %s", name), dry.Create(t.Context(), newQuota(ns, name)), nil)
	}
	for _, name := range []corev1.ResourceName{
		"cpu", "memory", "requests.cpu", "limits.memory", "requests.storage", "requests.nvidia.com/gpu", "pods", "services", "services.nodeports",
		"persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", "replicationcontrollers", "count/pods", "count/services", "count/events",
		"count/deployments.apps", "count/jobs.batch", "count/networkpolicies.networking.k8s.io", "count/virtualmachine.cloudnative.tw",
		"count/virtualmachines.v1alpha1.cloudnative.tw",
		"count/deployments.v1.apps", "count/VirtualMachines.Cloudnative.tw", "count/resourceclaims.resource.k8s.io",
	} {
		assertRefusal(t, string(name), dry.Create(t.Context(), newQuota(ns, "count/configmaps", name)), "spec.hard of "+string(name)+":")
	}
	scoped := newQuota(ns, "count/virtualmachines.cloudnative.tw")
	scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	assertRefusal(t, "scopes", dry.Create(t.Context(), scoped), "spec.scopes")
	quota := create(t, c, newQuota(ns, "count/configmaps"))
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hard":{"cpu":"1"}}}`))
	assertRefusal(t, "a quota that is changed", dry.Patch(t.Context(), quota, patch), "spec.hard of cpu:")
}

// TestPresetsAreRestored checks that what another field manager adds to the policies, which could
// switch them off, and to the roles is removed, and that nothing is written if nothing was added.
func TestPresetsAreRestored(t *testing.T) {
	t.Parallel()
	objects, err := dynamic.NewForConfig(shared.Config)
	assert.NoError(t, err)
	presets, err := preset.NewSet(objects, false)
	assert.NoError(t, err)
	for resource, addition := range map[string]string{ // none has an effect on other tests
		"validatingadmissionpolicies/drover-unenforced-kinds":        `{"spec": {"matchConditions": [{"name": "foreign", "expression": "true"}]}}`,
		"validatingadmissionpolicies/drover-unenforced-quotas":       `{"metadata": {"annotations": {"foreign": "true"}}}`,
		"validatingadmissionpolicybindings/drover-unenforced-quotas": `{"spec": {"matchResources": {"objectSelector": {"matchExpressions": [{"key": "foreign", "operator": "DoesNotExist"}]}}}}`,
		"clusterroles/drover-view":                                   `{"metadata": {"labels": {"foreign": "true"}}}`,
	} {
		plural, name, _ := strings.Cut(resource, "/")
		group := "admissionregistration.k8s.io"
		if plural == "clusterroles" {
			group = rbacv1.GroupName
		}
		c := objects.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural})
		object := &unstructured.Unstructured{}
		assert.NoError(t, json.Unmarshal([]byte(addition), &object.Object))
		live, err := c.Get(t.Context(), name, metav1.GetOptions{})
		assert.NoError(t, err)
		object.SetAPIVersion(live.GetAPIVersion())
		object.SetKind(live.GetKind())
		object.SetName(name)
		_, err = c.Apply(t.Context(), name, object, metav1.ApplyOptions{FieldManager: "foreign", Force: true})
		assert.NoError(t, err)
		assert.Eventually(t, resource+" is restored and then left alone", func(t testing.TB) error {
			if err := presets.Apply(t.Context()); err != nil {
				return err
			}
			before, err := c.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			before.SetManagedFields(nil)
			if text, err := before.MarshalJSON(); err != nil || strings.Contains(string(text), "foreign") {
				return fmt.Errorf("it is %s: %w", text, err)
			}
			if err := presets.Apply(t.Context()); err != nil {
				return err
			}
			after, err := c.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || after.GetResourceVersion() == before.GetResourceVersion() {
				return err
			}
			return errors.New("it was written again")
		})
	}
}

// makeUnenforced deletes the policies and makes objects that they refuse, as an earlier version of Drover accepted
// them.
func makeUnenforced(t *testing.T, cluster *framework.Cluster) []client.Object {
	t.Helper()
	c := objectsFor(t, cluster.Config)
	for _, name := range []string{"drover-unenforced-kinds", "drover-unenforced-quotas"} {
		policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		assert.NoError(t, c.Delete(t.Context(), policy))
	}
	var made []client.Object
	for _, name := range []string{"pods", "services", "networkpolicies.networking.k8s.io", "limitranges", "podtemplates"} {
		made = append(made, objectOf(t, refused[name].manifest, "default"))
	}
	made = append(made, newQuota("default", "cpu")) // then it is too late for Pods without CPU
	for _, object := range made {
		object.SetFinalizers([]string{"example.com/keep"})
		assert.Eventually(t, "the policies have no effect", func(t testing.TB) error { return c.Create(t.Context(), object) })
	}
	return made
}

// checkUnenforced checks that a start restores the policies, and that earlier objects can be labelled, lose their
// finalizers and go, though they are no longer accepted.
func checkUnenforced(t *testing.T, cluster *framework.Cluster, made []client.Object) {
	t.Helper()
	c := objectsFor(t, cluster.Config)
	service := objectOf(t, refused["services"].manifest, "default")
	service.SetName("another")
	for _, object := range []client.Object{service, newQuota("default", corev1.ResourceCPU)} { // each has a policy, restored apart
		assert.Eventually(t, "the policies are restored", func(t testing.TB) error {
			err := c.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
			if apierrors.IsForbidden(err) {
				return nil
			}
			return fmt.Errorf("got %w, want a refusal", err)
		})
	}
	for _, object := range made {
		patch := func(text string) error {
			return c.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(text)))
		}
		assert.NoError(t, patch(`{"metadata":{"labels":{"a":"b"}}}`))
		if _, ok := object.(*corev1.ResourceQuota); ok {
			assertRefusal(t, "an earlier quota that is changed", patch(`{"spec":{"hard":{"cpu":"9"}}}`), "spec.hard of cpu:")
		}
		assert.NoError(t, errors.Join(c.Delete(t.Context(), object), patch(`{"metadata":{"finalizers":null}}`)))
		waitForDeletion(t, c, object)
	}
	own := &corev1.Service{}
	assert.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, own))
}

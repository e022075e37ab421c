// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package podtest

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"cloudnative.tw/drover/test/assert"
)

// MutatePods has a policy of the cluster change each new pod of a namespace, as a webhook may, until it is removed. It
// is in force some time later.
func MutatePods(t testing.TB, kube kubernetes.Interface, namespace, name string, mutation admissionv1.Mutation) (remove func()) {
	t.Helper()
	name += "-" + namespace
	policies := kube.AdmissionregistrationV1()
	assert.NoError(t, assert.ErrorOf(policies.MutatingAdmissionPolicies().Create(t.Context(), &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
			Mutations: []admissionv1.Mutation{mutation},
		},
	}, metav1.CreateOptions{})))
	assert.NoError(t, assert.ErrorOf(policies.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}, metav1.CreateOptions{})))
	return func() {
		t.Helper()
		assert.NoError(t, policies.MutatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// Where charts are installed beside config/default, which has the namespace of that name.
const (
	chartNamespace  = "drover-chart"
	valuesNamespace = "drover-values"
)

// TestInstallations installs Drover in each way, one after the other. The cluster runs no pods.
func TestInstallations(t *testing.T) {
	t.Parallel()
	w := startWithAllAPIs(t)
	for _, step := range []struct {
		name string
		test func(*testing.T, *testenv.Environment)
	}{
		{"static pod", testStaticPod},
		{"config", testConfig},
		{"chart", testChart},
		{"aggregation", testAggregation}, // after the chart is removed
		{"all values", testAllValues},
		{"older CRD", testOlderCRD},
	} {
		t.Run(step.name, func(t *testing.T) { step.test(t, w) })
	}
}

// checkNoWarnings fails the test on warnings: the API server warns of objects that clusters with
// stricter settings refuse, such as a pod that is not restricted.
func checkNoWarnings(t *testing.T, stderr string) {
	t.Helper()
	for line := range strings.Lines(stderr) {
		// drover up has applied the CRD in another way.
		if strings.Contains(line, "Warning") && !strings.Contains(line, "last-applied-configuration") {
			t.Error(line)
		}
	}
}

func testConfig(t *testing.T, w *testenv.Environment) {
	_, stderr := framework.RunKubectl(t, w.Kubeconfig, "apply", "-k", configPath("default"), "--validate=strict")
	checkNoWarnings(t, stderr)
	// Apply a second time, by server-side apply, and with the component for driver pod.
	for _, dir := range []string{configPath("default"), overlay("pod")} {
		_, stderr = framework.RunKubectl(t, w.Kubeconfig, "apply", "-k", dir, "--validate=strict", "--server-side", "--force-conflicts", "--dry-run=server")
		checkNoWarnings(t, stderr)
	}
	kube := w.KubeClient
	checkInstalled(t, kube, namespace)

	pod := podTemplateOf(t, kube, namespace)
	dryRunPod(t, kube, pod, "")
	pod.Spec.SecurityContext.RunAsNonRoot = new(false) // which only the level restricted refuses
	dryRunPod(t, kube, pod, "violates PodSecurity")
}

// checkInstalled checks the objects that every installation of Drover has.
func checkInstalled(t *testing.T, kube kubernetes.Interface, ns string) {
	t.Helper()
	get := metav1.GetOptions{}
	deployment, err := kube.AppsV1().Deployments(ns).Get(t.Context(), "drover-controller", get)
	assert.NoError(t, err)
	n := *deployment.Spec.Replicas
	assert.True(t, n == 3, "the Deployment has %d replicas, want 3", n)
	_, budgetErr := kube.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "drover-controller", get)
	_, policyErr := kube.NetworkingV1().NetworkPolicies(ns).Get(t.Context(), "drover-controller", get)
	_, serviceErr := kube.CoreV1().Services(ns).Get(t.Context(), "drover-metrics", get)
	assert.NoError(t, errors.Join(budgetErr, policyErr, serviceErr))
}

// podTemplateOf returns a pod of the Deployment's template.
func podTemplateOf(t *testing.T, kube kubernetes.Interface, ns string) *corev1.Pod {
	t.Helper()
	deployment, err := kube.AppsV1().Deployments(ns).Get(t.Context(), "drover-controller", metav1.GetOptions{})
	assert.NoError(t, err)
	template := deployment.Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = "drover-controller-0", ns
	return pod
}

// dryRunPod checks that the API server admits a pod, or refuses it with a text.
func dryRunPod(t *testing.T, kube kubernetes.Interface, pod *corev1.Pod, refusal string) {
	t.Helper()
	opts := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	_, err := kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, opts)
	if refusal == "" && err != nil {
		t.Error(err)
	}
	assert.True(t, refusal == "" || (err != nil && strings.Contains(err.Error(), refusal)), "the error is %v, want %q in it", err, refusal)
}

// applyChart renders the chart and applies the objects.
func applyChart(t *testing.T, w *testenv.Environment, ns string, values []string, flags ...string) {
	t.Helper()
	manifests, _ := framework.RunHelm(t, w.Kubeconfig, append([]string{"template", "drover", chart, "--namespace", ns}, values...)...)
	file := filepath.Join(t.TempDir(), "chart.yaml")
	assert.NoError(t, os.WriteFile(file, []byte(manifests), 0o600))
	_, stderr := framework.RunKubectl(t, w.Kubeconfig, append([]string{"apply", "-f", file, "--validate=strict"}, flags...)...)
	checkNoWarnings(t, stderr)
}

func testChart(t *testing.T, w *testenv.Environment) {
	applyChart(t, w, metav1.NamespaceDefault, nil, "--dry-run=server")

	// drover up has installed the CRD: hand it over to the chart.
	kube := w.KubeClient
	args := []string{chart, "--namespace", chartNamespace, "--take-ownership", "--force-conflicts", "--set", "secretNamespaces={default}"}
	framework.RunHelm(t, w.Kubeconfig, append([]string{"install", "drover", "--create-namespace"}, args...)...)
	checkInstalled(t, kube, chartNamespace)
	dryRunPod(t, kube, podTemplateOf(t, kube, chartNamespace), "")
	_, err := kube.RbacV1().RoleBindings("default").Get(t.Context(), "drover-secrets-reader", metav1.GetOptions{})
	assert.NoError(t, err)
	framework.RunHelm(t, w.Kubeconfig, append([]string{"upgrade", "drover", "--set", "docker.host=tcp://engine.example:2376,docker.tlsSecret=engine,metrics.certSecret=metrics"}, args...)...)
	dryRunPod(t, kube, podTemplateOf(t, kube, chartNamespace), "")
	checkUninstallKeepsVMs(t, w)
}

// testAllValues checks that the API server accepts the objects of the chart with all values set,
// in a namespace of restricted pods, including the PodMonitor.
func testAllValues(t *testing.T, w *testenv.Environment) {
	framework.RunKubectl(t, w.Kubeconfig, "apply", "-f", podMonitorCRD, "--validate=strict")
	framework.RunKubectl(t, w.Kubeconfig, "wait", "--for=condition=Established", "--timeout="+framework.CommandTimeout.String(), "-f", podMonitorCRD)
	restricted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: valuesNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	_, err := w.KubeClient.CoreV1().Namespaces().Create(t.Context(), restricted, metav1.CreateOptions{})
	assert.NoError(t, err)
	for _, values := range [][]string{{"--values", allValues}, {"--set", "metrics.podMonitor.enabled=true"}} {
		applyChart(t, w, valuesNamespace, values)
		dryRunPod(t, w.KubeClient, podTemplateOf(t, w.KubeClient, valuesNamespace), "")
	}
	checkScraper(t, w, waitForToken(t, w.KubeClient, valuesNamespace, "drover-metrics-scraper"))
}

// checkScraper checks that the PodMonitor's token may read metrics, and has no other rights than
// every account.
func checkScraper(t *testing.T, w *testenv.Environment, token string) {
	t.Helper()
	scraper := newUser(t, "", "token", w.TokenUser(token)).client
	review := &authorizationv1.SelfSubjectAccessReview{}
	review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	assert.Eventually(t, "the account may read metrics", func(t testing.TB) error {
		answer, err := scraper.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = errors.New("the account may not")
		}
		return err
	})
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: valuesNamespace}}
	answer, err := scraper.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), rules, metav1.CreateOptions{})
	assert.NoError(t, err)
	for _, rule := range answer.Status.ResourceRules {
		assert.True(t, strings.HasPrefix(rule.Resources[0], "selfsubject") || slices.Equal(rule.ResourceNames, []string{streams.ConfigMapName}),
			"the account may %v %v", rule.Verbs, rule.Resources)
	}
}

// testAggregation checks that a value of the chart gives editors of namespaces rights to VMs, and
// takes these rights away again.
func testAggregation(t *testing.T, w *testenv.Environment) {
	roles := w.KubeClient.RbacV1().ClusterRoles()
	args := []string{"drover", chart, "--namespace", chartNamespace, "--set", "crds.install=false"}
	for _, step := range []struct {
		command []string
		want    bool
	}{
		{[]string{"install"}, true},
		{[]string{"upgrade", "--set", "rbac.aggregateRoles=false"}, false},
		{[]string{"upgrade"}, true},
	} {
		framework.RunHelm(t, w.Kubeconfig, append(step.command, args...)...)
		assert.Eventually(t, fmt.Sprintf("after %v role edit has VMs: %v", step.command, step.want), func(t testing.TB) error {
			edit, err := roles.Get(t.Context(), "edit", metav1.GetOptions{})
			if err != nil {
				return err
			}
			has := slices.ContainsFunc(edit.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, api.SchemeGroupVersion.Group) })
			return assert.ErrorUnless(has == step.want, "role edit has VMs: %v", has)
		})
		_, err := roles.Get(t.Context(), "drover-edit", metav1.GetOptions{})
		assert.NoError(t, err)
	}
}

// checkUninstallKeepsVMs checks that uninstalling the chart keeps the CRD, with which all VMs would
// be deleted.
func checkUninstallKeepsVMs(t *testing.T, w *testenv.Environment) {
	t.Helper()
	vms := w.VMsIn(metav1.NamespaceDefault)
	vm := framework.NewVM("stays").Obj()
	_, err := vms.Create(t.Context(), vm, metav1.CreateOptions{})
	assert.NoError(t, err)
	framework.RunHelm(t, w.Kubeconfig, "uninstall", "drover", "--namespace", chartNamespace)
	_, err = w.KubeClient.AppsV1().Deployments(chartNamespace).Get(t.Context(), "drover-controller", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "the Deployment is still there: error %v", err)
	now, err := vms.Get(t.Context(), vm.Name, metav1.GetOptions{})
	assert.True(t, err == nil && now.DeletionTimestamp == nil, "the VM is %+v, error %v", now, err)
	assert.NoError(t, vms.Delete(t.Context(), vm.Name, metav1.DeleteOptions{}))
}

// testStaticPod checks that the static pod is admitted, and that the token for its kubeconfig has
// the controller's rights.
func testStaticPod(t *testing.T, w *testenv.Environment) {
	kube := w.KubeClient
	_, stderr := framework.RunKubectl(t, w.Kubeconfig, "apply", "-k", configPath("static-pod"), "--validate=strict")
	checkNoWarnings(t, stderr)
	assert.Eventually(t, "the default ServiceAccount", func(t testing.TB) error {
		_, err := kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	_, stderr = framework.RunKubectl(t, w.Kubeconfig, "apply", "-f", staticPod, "--validate=strict", "--dry-run=server")
	checkNoWarnings(t, stderr)

	controller := newUser(t, "", "token", w.TokenUser(waitForToken(t, kube, namespace, "drover-controller-token"))).client
	_, err := controller.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	assert.NoError(t, err)
	_, err = controller.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err), "the token may read another namespace: error %v", err)
}

func waitForToken(t *testing.T, kube kubernetes.Interface, ns, name string) string {
	t.Helper()
	var token string
	assert.Eventually(t, "the Secret has a token", func(t testing.TB) error {
		secret, err := kube.CoreV1().Secrets(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = string(secret.Data[corev1.ServiceAccountTokenKey]); token == "" {
			return errors.New("the Secret lacks a token")
		}
		return nil
	})
	return token
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"os"
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
	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// startCluster starts a cluster that serves Deployments too. Nothing runs their
// pods.
func startCluster(t *testing.T) (*framework.Cluster, kubernetes.Interface) {
	t.Helper()
	c := framework.StartCluster(t, framework.ClusterOptions{Args: []string{"--all-apis"}})
	return c, clientOf(t, c)
}

func clientOf(t *testing.T, c *framework.Cluster) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// checkNoWarnings fails the test on warnings: the API server warns of what it would
// refuse elsewhere, such as a pod that is not restricted.
func checkNoWarnings(t *testing.T, stderr string) {
	t.Helper()
	for line := range strings.Lines(stderr) {
		// drover up has applied the CRD in another way.
		if strings.Contains(line, "Warning") && !strings.Contains(line, "last-applied-configuration") {
			t.Error(line)
		}
	}
}

func TestConfigApplies(t *testing.T) {
	t.Parallel()
	c, kube := startCluster(t)
	_, stderr := framework.RunKubectl(t, c.Kubeconfig, "apply", "-k", configPath("default"), "--validate=strict")
	checkNoWarnings(t, stderr)
	// Again, as server-side apply does.
	_, stderr = framework.RunKubectl(t, c.Kubeconfig, "apply", "-k", configPath("default"), "--validate=strict", "--server-side", "--force-conflicts", "--dry-run=server")
	checkNoWarnings(t, stderr)
	isInstalled(t, kube, namespace)

	pod := podTemplateOf(t, kube)
	dryRunPod(t, kube, pod, "")
	for name, spoil := range map[string]func(*corev1.Pod){
		"root":      func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsNonRoot = new(false) },
		"privilege": func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true) },
		"the host":  func(p *corev1.Pod) { p.Spec.HostNetwork = true },
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			spoilt := pod.DeepCopy()
			spoil(spoilt)
			dryRunPod(t, kube, spoilt, "violates PodSecurity")
		})
	}
}

// isInstalled checks for the objects that every installation of Drover has.
func isInstalled(t *testing.T, kube kubernetes.Interface, ns string) {
	t.Helper()
	get := metav1.GetOptions{}
	deployment, err := kube.AppsV1().Deployments(ns).Get(t.Context(), "drover-controller", get)
	if err != nil {
		t.Fatal(err)
	}
	if n := *deployment.Spec.Replicas; n != 3 {
		t.Errorf("it has %d replicas, want 3", n)
	}
	_, err = kube.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "drover-controller", get)
	checkError(t, err)
	_, err = kube.NetworkingV1().NetworkPolicies(ns).Get(t.Context(), "drover-controller", get)
	checkError(t, err)
	_, err = kube.CoreV1().Services(ns).Get(t.Context(), "drover-metrics", get)
	checkError(t, err)
}

func checkError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// podTemplateOf returns the pod that the Deployment would create.
func podTemplateOf(t *testing.T, kube kubernetes.Interface) *corev1.Pod {
	t.Helper()
	deployment, err := kube.AppsV1().Deployments(namespace).Get(t.Context(), "drover-controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	template := deployment.Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = "drover-controller-0", namespace
	return pod
}

// dryRunPod makes the API server admit a pod, or refuse it with a text.
func dryRunPod(t *testing.T, kube kubernetes.Interface, pod *corev1.Pod, refusal string) {
	t.Helper()
	opts := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	_, err := kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, opts)
	if refusal == "" && err != nil {
		t.Error(err)
	}
	if refusal != "" && (err == nil || !strings.Contains(err.Error(), refusal)) {
		t.Errorf("the error is %v, want %q in it", err, refusal)
	}
}

func TestChartInstalls(t *testing.T) {
	t.Parallel()
	c, kube := startCluster(t)
	manifests, _ := framework.RunHelm(t, c.Kubeconfig, "template", "drover", chart, "--namespace", metav1.NamespaceDefault)
	file := t.TempDir() + "/chart.yaml"
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr := framework.RunKubectl(t, c.Kubeconfig, "apply", "-f", file, "--validate=strict", "--dry-run=server")
	checkNoWarnings(t, stderr)

	// drover up has installed the CRD: from now on it is the chart's.
	args := []string{chart, "--namespace", namespace, "--take-ownership", "--force-conflicts", "--set", "secretNamespaces={default}"}
	framework.RunHelm(t, c.Kubeconfig, append([]string{"install", "drover", "--create-namespace"}, args...)...)
	isInstalled(t, kube, namespace)
	dryRunPod(t, kube, podTemplateOf(t, kube), "")
	_, err := kube.RbacV1().RoleBindings("default").Get(t.Context(), "drover-secrets-reader", metav1.GetOptions{})
	checkError(t, err)
	framework.RunHelm(t, c.Kubeconfig, append([]string{"upgrade", "drover", "--set", "docker.host=tcp://engine.example:2376,docker.tlsSecret=engine,metrics.certSecret=metrics"}, args...)...)
	dryRunPod(t, kube, podTemplateOf(t, kube), "")
	checkUninstallKeepsVMs(t, c, kube)
}

// TestChartInstallsAllValues checks that the API server accepts what the values lead to, in
// a namespace of restricted pods, and the PodMonitor as Prometheus Operator defines it.
func TestChartInstallsAllValues(t *testing.T) {
	t.Parallel()
	c, kube := startCluster(t)
	framework.RunKubectl(t, c.Kubeconfig, "apply", "-f", podMonitorCRD, "--validate=strict")
	framework.RunKubectl(t, c.Kubeconfig, "wait", "--for=condition=Established", "--timeout=30s", "-f", podMonitorCRD)
	framework.RunKubectl(t, c.Kubeconfig, "create", "namespace", namespace)
	framework.RunKubectl(t, c.Kubeconfig, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	for _, args := range [][]string{{"--values", allValues}, {"--set", "metrics.podMonitor.enabled=true"}} {
		manifests, _ := framework.RunHelm(t, c.Kubeconfig, append([]string{"template", "drover", chart, "--namespace", namespace}, args...)...)
		file := t.TempDir() + "/chart.yaml"
		if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr := framework.RunKubectl(t, c.Kubeconfig, "apply", "-f", file, "--validate=strict")
		checkNoWarnings(t, stderr)
		dryRunPod(t, kube, podTemplateOf(t, kube), "")
	}
	checkScraper(t, c, waitForToken(t, kube, "drover-metrics-scraper"))
}

// checkScraper checks that the PodMonitor's token allows to read metrics, and no more than
// every account may.
func checkScraper(t *testing.T, c *framework.Cluster, token string) {
	t.Helper()
	scraper := clientForToken(t, writeKubeconfig(t, c, token))
	review := &authorizationv1.SelfSubjectAccessReview{}
	review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	assert.Eventually(t, "the account may read metrics", func(t testing.TB) error {
		answer, err := scraper.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = errors.New("it may not")
		}
		return err
	})
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	answer, err := scraper.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), rules, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range answer.Status.ResourceRules {
		if !strings.HasPrefix(rule.Resources[0], "selfsubject") && !slices.Equal(rule.ResourceNames, []string{streams.ConfigMapName}) {
			t.Errorf("it may %v %v", rule.Verbs, rule.Resources)
		}
	}
}

// TestChartAggregation checks that a value gives editors of namespaces their VMs, and takes
// them away again.
func TestChartAggregation(t *testing.T) {
	t.Parallel()
	c, kube := startCluster(t)
	// A cluster that is not drover up has none.
	framework.RunKubectl(t, c.Kubeconfig, "delete", "clusterroles", "drover-view", "drover-edit", "drover-admin")
	args := []string{"drover", chart, "--namespace", namespace, "--set", "crds.install=false"}
	for _, step := range []struct {
		command []string
		want    bool
	}{
		{[]string{"install", "--create-namespace"}, true},
		{[]string{"upgrade", "--set", "rbac.aggregateRoles=false"}, false},
		{[]string{"upgrade"}, true},
	} {
		framework.RunHelm(t, c.Kubeconfig, append(step.command, args...)...)
		assert.Eventually(t, fmt.Sprintf("after %v role edit has VMs: %v", step.command, step.want), func(t testing.TB) error {
			edit, err := kube.RbacV1().ClusterRoles().Get(t.Context(), "edit", metav1.GetOptions{})
			if err != nil {
				return err
			}
			has := slices.ContainsFunc(edit.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, api.SchemeGroupVersion.Group) })
			if has != step.want {
				return fmt.Errorf("it has them: %v", has)
			}
			return nil
		})
		_, err := kube.RbacV1().ClusterRoles().Get(t.Context(), "drover-edit", metav1.GetOptions{})
		checkError(t, err)
	}
}

// checkUninstallKeepsVMs checks that the CRD stays; otherwise every VM would be deleted
// with it.
func checkUninstallKeepsVMs(t *testing.T, c *framework.Cluster, kube kubernetes.Interface) {
	t.Helper()
	all, err := versioned.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	vms := all.CloudnativeV1alpha1().VirtualMachines(metav1.NamespaceDefault)
	vm := framework.NewVM("stays").Obj()
	if _, err := vms.Create(t.Context(), vm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.RunHelm(t, c.Kubeconfig, "uninstall", "drover", "--namespace", namespace)
	if _, err := kube.AppsV1().Deployments(namespace).Get(t.Context(), "drover-controller", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment is still there: error %v", err)
	}
	now, err := vms.Get(t.Context(), vm.Name, metav1.GetOptions{})
	if err != nil || now.DeletionTimestamp != nil {
		t.Errorf("the VM is %+v, error %v", now, err)
	}
}

// TestStaticPodApplies checks that the pod is admitted, and that the token for its
// kubeconfig is the controller's.
func TestStaticPodApplies(t *testing.T) {
	t.Parallel()
	c, kube := startCluster(t)
	_, stderr := framework.RunKubectl(t, c.Kubeconfig, "apply", "-k", configPath("static-pod"), "--validate=strict")
	checkNoWarnings(t, stderr)
	waitForDefaultAccount(t, kube, metav1.NamespaceSystem)
	_, stderr = framework.RunKubectl(t, c.Kubeconfig, "apply", "-f", staticPod, "--validate=strict", "--dry-run=server")
	checkNoWarnings(t, stderr)

	controller := clientForToken(t, writeKubeconfig(t, c, waitForToken(t, kube, "drover-controller-token")))
	if _, err := controller.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	_, err := controller.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("it may read another namespace: error %v", err)
	}
}

// waitForDefaultAccount waits for the account that pods get by default.
func waitForDefaultAccount(t *testing.T, kube kubernetes.Interface, ns string) {
	t.Helper()
	assert.Eventually(t, "the default ServiceAccount", func(t testing.TB) error {
		_, err := kube.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

func waitForToken(t *testing.T, kube kubernetes.Interface, name string) string {
	t.Helper()
	var token string
	assert.Eventually(t, "the Secret has a token", func(t testing.TB) error {
		secret, err := kube.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = string(secret.Data[corev1.ServiceAccountTokenKey]); token == "" {
			return errors.New("it has none")
		}
		return nil
	})
	return token
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

const (
	// streamsPrefix is the prefix of the paths of streams.
	streamsPrefix = streams.PathPrefix + "/"
	// streamsName is the name of the role and the binding that allow every user to request a
	// stream. Each request is then authorized separately for its VirtualMachine.
	streamsName = "drover-streams"
)

// markStreamsLong marks streams as long-running requests, such as watches and pods/exec. They then lack a
// deadline, and do not occupy seats of priority and fairness.
func markStreamsLong(config *aggregator.Config) {
	others := config.GenericConfig.LongRunningFunc
	config.GenericConfig.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		return strings.HasPrefix(info.Path, streamsPrefix) || others(r, info)
	}
}

// serveStreams serves streams behind the authentication of kube-apiserver.
func serveStreams(server *aggregator.APIAggregator, handler http.Handler) {
	server.GenericAPIServer.Handler.NonGoRestfulMux.UnlistedHandlePrefix(streamsPrefix, handler)
}

// installStreams lets every authenticated user find and request streams. Clients find streams by a
// ConfigMap in a namespace in which only Drover writes.
func (c *Config) installStreams(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.ClientConfig(c.Keys.Controller()))
	if err != nil {
		return err
	}
	return c.waitFor(ctx, func(ctx context.Context) error {
		for _, apply := range []func(context.Context, kubernetes.Interface, metav1.ApplyOptions) error{applyStreamsAddress, applyStreamsAccess} {
			if err := apply(ctx, client, metav1.ApplyOptions{FieldManager: "drover", Force: true}); err != nil {
				return err
			}
		}
		return nil
	})
}

// applyStreamsAddress publishes to every user that kube-apiserver itself serves streams.
func applyStreamsAddress(ctx context.Context, client kubernetes.Interface, o metav1.ApplyOptions) error {
	ns := streams.ConfigMapNamespace
	role := rbacv1.Role(streamsName+"-reader", ns).WithRules(rbacv1.PolicyRule().
		WithAPIGroups("").WithResources("configmaps").WithResourceNames(streams.ConfigMapName).WithVerbs("get"))
	binding := rbacv1.RoleBinding(streamsName+"-reader", ns).WithRoleRef(roleRef("Role", streamsName+"-reader")).WithSubjects(everyUser())
	// kube-apiserver also creates the namespace, but perhaps later.
	_, err := client.CoreV1().Namespaces().Apply(ctx, corev1.Namespace(ns), o)
	if err == nil {
		_, err = client.CoreV1().ConfigMaps(ns).Apply(ctx, corev1.ConfigMap(streams.ConfigMapName, ns).WithData(map[string]string{streams.AddressKey: ""}), o)
	}
	if err == nil {
		_, err = client.RbacV1().Roles(ns).Apply(ctx, role, o)
	}
	if err == nil {
		_, err = client.RbacV1().RoleBindings(ns).Apply(ctx, binding, o)
	}
	return err
}

// applyStreamsAccess allows every user to request the paths of streams. Each stream needs another right.
func applyStreamsAccess(ctx context.Context, client kubernetes.Interface, o metav1.ApplyOptions) error {
	role := rbacv1.ClusterRole(streamsName).WithRules(rbacv1.PolicyRule().WithNonResourceURLs(streamsPrefix + "*").WithVerbs("get"))
	binding := rbacv1.ClusterRoleBinding(streamsName).WithRoleRef(roleRef("ClusterRole", streamsName)).WithSubjects(everyUser())
	_, err := client.RbacV1().ClusterRoles().Apply(ctx, role, o)
	if err == nil {
		_, err = client.RbacV1().ClusterRoleBindings().Apply(ctx, binding, o)
	}
	return err
}

func roleRef(kind, name string) *rbacv1.RoleRefApplyConfiguration {
	return rbacv1.RoleRef().WithAPIGroup("rbac.authorization.k8s.io").WithKind(kind).WithName(name)
}

func everyUser() *rbacv1.SubjectApplyConfiguration {
	return rbacv1.Subject().WithAPIGroup("rbac.authorization.k8s.io").WithKind("Group").WithName(user.AllAuthenticated)
}

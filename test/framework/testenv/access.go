// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"cloudnative.tw/drover/test/assert"
)

// TokenUser returns the user whom the API server knows by a token.
func (env *Environment) TokenUser(token string) *rest.Config {
	user := rest.AnonymousClientConfig(env.Config)
	user.BearerToken, user.QPS = token, -1
	return user
}

// RequestToken returns a token of a ServiceAccount.
func (env *Environment) RequestToken(t testing.TB, ns, account string) string {
	t.Helper()
	answer, err := env.KubeClient.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	assert.NoError(t, err)
	return answer.Status.Token
}

// NewAccount returns a user with the token of a new ServiceAccount, and its subject for bindings.
func (env *Environment) NewAccount(t testing.TB, ns, name string) (*rest.Config, rbacv1.Subject) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := env.KubeClient.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{})
	assert.NoError(t, err)
	return env.TokenUser(env.RequestToken(t, ns, name)), rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}
}

// NewPerson returns a user with a client certificate, and its subject for bindings.
func (env *Environment) NewPerson(t testing.TB, name string) (*rest.Config, rbacv1.Subject) {
	t.Helper()
	return env.SignUser(t, name, time.Now().Add(time.Hour)), Person(name)
}

// Person returns the named user as the subject of a binding.
func Person(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// Bind gives a ClusterRole to a subject, in a namespace, or in all namespaces if ns is empty.
func (env *Environment) Bind(t testing.TB, ns, role string, subject rbacv1.Subject) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: role + "-of-" + subject.Name}
	ref, subjects := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, []rbacv1.Subject{subject}
	var err error
	if ns == "" {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
		_, err = env.KubeClient.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	} else {
		binding := &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
		_, err = env.KubeClient.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{})
	}
	assert.NoError(t, err)
}

// CreateRole creates a ClusterRole.
func (env *Environment) CreateRole(t testing.TB, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
	_, err := env.KubeClient.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	assert.NoError(t, err)
}

// WriteKubeconfig writes a kubeconfig of a user and returns its path.
func WriteKubeconfig(t testing.TB, user *rest.Config) string {
	t.Helper()
	user = rest.CopyConfig(user)
	assert.NoError(t, rest.LoadTLSFiles(user))
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: user.Host, CertificateAuthorityData: user.CAData}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: user.BearerToken, ClientCertificateData: user.CertData, ClientKeyData: user.KeyData}
	file.Contexts["x"], file.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	assert.NoError(t, clientcmd.WriteToFile(*file, path))
	return path
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const (
	// uidLabel is on the namespace of a user, and on its ServiceAccount. userAnnotation has the name, which need not
	// be a valid label.
	uidLabel       = "cloudnative.tw/unix-uid"
	userAnnotation = "cloudnative.tw/unix-user"
	// agentsAccount is for the user's programs.
	agentsAccount = "agents"
	editBinding   = "drover-login"
	editRole      = "drover-edit"
	selfRole      = "drover-self"
)

// grantAccess gives a member a separate namespace and its rights there. It is repeatable, and writes only what differs.
func (s *Server) grantAccess(ctx context.Context, m member) error {
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultRetry, again, func() error { return s.tryGrant(ctx, m) })
}

func (s *Server) tryGrant(ctx context.Context, m member) error {
	if err := s.ensureNamespace(ctx, m); err != nil {
		return err
	}
	if err := s.ensureAgents(ctx, m); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: m.namespace(), Name: selfRole}
	role := &rbacv1.Role{ObjectMeta: meta}
	_, err := controllerutil.CreateOrUpdate(ctx, s.Client, role, func() error {
		role.Rules = selfRules()
		return nil
	})
	if err != nil {
		return err
	}
	user := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: m.apiName()}
	agents := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: m.namespace(), Name: agentsAccount}
	if err := s.ensureBinding(ctx, m, selfRole, "Role", selfRole, user); err != nil {
		return err
	}
	return s.ensureBinding(ctx, m, editBinding, "ClusterRole", editRole, user, agents)
}

// selfRules are a user's rights besides editing VirtualMachines: to read events and quotas, and to make tokens for
// programs.
func selfRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"events", "resourcequotas"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: []string{agentsAccount}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{agentsAccount}, Verbs: []string{"create"}},
	}
}

// ensureNamespace creates the namespace of a member. It refuses a namespace that is not this user's, since its content
// is another user's: only root decides that.
func (s *Server) ensureNamespace(ctx context.Context, m member) error {
	ns := &corev1.Namespace{}
	err := s.Client.Get(ctx, client.ObjectKey{Name: m.namespace()}, ns)
	if apierrors.IsNotFound(err) {
		ns.Name = m.namespace()
		ns.Labels, ns.Annotations = map[string]string{uidLabel: m.uidText()}, map[string]string{userAnnotation: m.name}
		return s.Client.Create(ctx, ns)
	}
	if err != nil {
		return err
	}
	if ns.Labels[uidLabel] != m.uidText() {
		return newRefusal("namespace %s %s, and user %s has ID %d: root can give it to %s (sudo drover kubectl label --overwrite namespace %s %s=%d), or delete it with its VMs (sudo drover kubectl delete namespace %s)",
			ns.Name, describeOwner(ns), m.name, m.uid, m.name, ns.Name, uidLabel, m.uid, ns.Name)
	}
	if !ns.DeletionTimestamp.IsZero() {
		return newRefusal("namespace %s is being deleted: try again once it is gone", ns.Name)
	}
	if ns.Annotations[userAnnotation] == m.name {
		return nil
	}
	metav1.SetMetaDataAnnotation(&ns.ObjectMeta, userAnnotation, m.name)
	return s.Client.Update(ctx, ns)
}

func describeOwner(ns *corev1.Namespace) string {
	if uid, ok := ns.Labels[uidLabel]; ok {
		return fmt.Sprintf("belongs to user ID %s", uid)
	}
	return fmt.Sprintf("was not made for a user of the host, since it lacks label %s", uidLabel)
}

// ensureAgents creates the ServiceAccount for the member's programs. One that was made for another user ID is replaced,
// so that its tokens end.
func (s *Server) ensureAgents(ctx context.Context, m member) error {
	account := &corev1.ServiceAccount{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: m.namespace(), Name: agentsAccount}, account)
	if err == nil && account.Labels[uidLabel] == m.uidText() {
		return nil
	}
	if err == nil {
		err = s.Client.Delete(ctx, account, client.Preconditions{UID: &account.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return s.Client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.namespace(), Name: agentsAccount, Labels: map[string]string{uidLabel: m.uidText()},
	}})
}

// ensureBinding binds subjects to a role in the member's namespace.
func (s *Server) ensureBinding(ctx context.Context, m member, name, kind, role string, subjects ...rbacv1.Subject) error {
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace(), Name: name}}
	_, err := controllerutil.CreateOrUpdate(ctx, s.Client, binding, func() error {
		binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}
		binding.Subjects = subjects
		return nil
	})
	return err
}

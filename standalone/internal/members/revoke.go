// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"cloudnative.tw/drover/internal/machine/accounts"
)

// comparison is one comparison of all rights with the host's users.
type comparison struct {
	*Server
	// standings caches the standing of each user, by name.
	standings map[string]standing
	// owners has the users with a namespace, by name, and whether it is theirs: another user may have had the name.
	owners map[string]bool
	// revoked has the namespaces whose user is not a member any more, and that user.
	revoked map[string]string
}

// standing is whether a user is in the group. After an error nothing is known, and so nothing is removed.
type standing struct {
	uid      uint32
	isMember bool
	err      error
}

// compareRights restores the rights of members in their namespaces, and removes those of users who left the group:
// wherever they are bound, with the ServiceAccounts of their namespaces and their tokens. VirtualMachines stay.
func (s *Server) compareRights(ctx context.Context) error {
	c := &comparison{Server: s, standings: map[string]standing{}, owners: map[string]bool{}, revoked: map[string]string{}}
	return errors.Join(c.compareNamespaces(ctx), c.compareBindings(ctx), c.removeAgents(ctx))
}

func (c *comparison) compareNamespaces(ctx context.Context) error {
	var all corev1.NamespaceList
	if err := c.listObjects(ctx, &all, client.HasLabels{uidLabel}); err != nil {
		return err
	}
	var errs []error
	for i := range all.Items {
		errs = append(errs, c.compareNamespace(ctx, &all.Items[i]))
	}
	return errors.Join(errs...)
}

// compareNamespace restores the access of the user of a namespace, or notes that it has to be removed.
func (c *comparison) compareNamespace(ctx context.Context, ns *corev1.Namespace) error {
	name, recorded := ns.Annotations[userAnnotation]
	if !recorded || !ns.DeletionTimestamp.IsZero() {
		return nil // its user has not logged in yet, or never again
	}
	now := c.findStanding(name)
	if now.err != nil {
		return now.err
	}
	m := member{name, now.uid}
	if !now.isMember || m.uidText() != ns.Labels[uidLabel] || m.namespace() != ns.Name {
		if _, known := c.owners[name]; !known {
			c.owners[name] = false
		}
		c.revoked[ns.Name] = name
		return nil
	}
	c.owners[name] = true
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return c.grantAccess(ctx, m)
}

// findStanding asks the host about a user, once in a comparison.
func (c *comparison) findStanding(name string) standing {
	known, ok := c.standings[name]
	if !ok {
		known = c.askStanding(name)
		c.standings[name] = known
	}
	return known
}

func (c *comparison) askStanding(name string) standing {
	if !userName.MatchString(name) {
		return standing{} // never logged in
	}
	found, err := c.Directory.FindUser(name)
	if errors.Is(err, accounts.ErrUnknown) {
		return standing{}
	}
	if err != nil {
		return standing{err: fmt.Errorf("user %s: %w", name, err)}
	}
	isMember, err := c.isInGroup(found)
	return standing{found.ID, isMember, err}
}

// compareBindings removes users who left the group from all bindings.
func (c *comparison) compareBindings(ctx context.Context) error {
	var inNamespaces rbacv1.RoleBindingList
	var everywhere rbacv1.ClusterRoleBindingList
	if err := errors.Join(c.listObjects(ctx, &inNamespaces), c.listObjects(ctx, &everywhere)); err != nil {
		return err
	}
	var errs []error
	for i := range inNamespaces.Items {
		b := &inNamespaces.Items[i]
		errs = append(errs, c.compareBinding(ctx, b, &b.Subjects))
	}
	for i := range everywhere.Items {
		b := &everywhere.Items[i]
		errs = append(errs, c.compareBinding(ctx, b, &b.Subjects))
	}
	return errors.Join(errs...)
}

// compareBinding removes subjects from a binding, which is deleted with the last one.
func (c *comparison) compareBinding(ctx context.Context, binding client.Object, subjects *[]rbacv1.Subject) error {
	before := len(*subjects)
	*subjects = slices.DeleteFunc(*subjects, func(s rbacv1.Subject) bool { return c.hasLeft(s, binding.GetNamespace()) })
	if len(*subjects) == before {
		return nil
	}
	klog.FromContext(ctx).Info("Access removed of a user who is not in group drover", "namespace", binding.GetNamespace(), "binding", binding.GetName())
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if len(*subjects) > 0 {
		return c.Client.Update(ctx, binding)
	}
	uid, version := binding.GetUID(), binding.GetResourceVersion()
	return client.IgnoreNotFound(c.Client.Delete(ctx, binding, client.Preconditions{UID: &uid, ResourceVersion: &version}))
}

// hasLeft reports whether a subject of a binding is a user who is not a member, or a program of one.
func (c *comparison) hasLeft(subject rbacv1.Subject, namespace string) bool {
	switch subject.Kind {
	case rbacv1.ServiceAccountKind:
		_, left := c.revoked[subject.Namespace]
		return left
	case rbacv1.UserKind:
		name, ok := strings.CutPrefix(subject.Name, userPrefix)
		return ok && c.hasUserLeft(name, namespace)
	}
	return false
}

// hasUserLeft reports whether a user must lose a binding in a namespace.
func (c *comparison) hasUserLeft(name, namespace string) bool {
	now := c.findStanding(name)
	if now.err != nil {
		return false
	}
	owns, hasNamespace := c.owners[name]
	return !now.isMember || hasNamespace && !owns || c.revoked[namespace] == name
}

// removeAgents ends the tokens of programs. It comes after the bindings, of which another start finds what is left.
func (c *comparison) removeAgents(ctx context.Context) error {
	var errs []error
	for ns := range c.revoked {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: agentsAccount}}
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		errs = append(errs, client.IgnoreNotFound(c.Client.Delete(ctx, account)))
		cancel()
	}
	return errors.Join(errs...)
}

// listObjects lists from the memory of kube-apiserver. Each call makes its options, since the client changes Raw.
func (c *comparison) listObjects(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	fromMemory := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	return c.Client.List(ctx, list, append(options, fromMemory)...)
}

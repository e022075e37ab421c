// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"context"
	"errors"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// PluginName is the name of the admission plugin.
const PluginName = "DroverStoreQuota"

// retryAfter is how many seconds a client should wait after a temporary refusal.
const retryAfter = 10

// Register adds the plugin to those of kube-apiserver, just before ResourceQuota: the plugin does not
// count writes that earlier plugins refuse, and ResourceQuota does not count writes that the plugin refuses.
func Register(o *genericoptions.AdmissionOptions, accounts *Accounts, users ...string) {
	o.Plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), accounts: accounts, own: users}, nil
	})
	at := slices.Index(o.RecommendedPluginOrder, "ResourceQuota")
	o.RecommendedPluginOrder = slices.Insert(slices.Clone(o.RecommendedPluginOrder), max(0, at), PluginName)
}

// plugin refuses writes that the accounts do not admit.
type plugin struct {
	*admission.Handler

	accounts *Accounts
	own      []string // the names of Drover's users
}

var _ admission.ValidationInterface = &plugin{}

// Validate implements admission.ValidationInterface. It gets the object as it will be stored: patches are
// applied and fields have their defaults.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.IsDryRun() || !isStored(a) {
		return nil
	}
	sizes := measurer{kind: a.GetKind(), convertor: o.GetObjectConvertor()}
	if a.GetOperation() == admission.Delete {
		if old := a.GetOldObject(); old != nil && !isBeingDeleted(old) {
			p.accounts.RecordDeletion(a.GetNamespace(), sizes.sizeOf(old))
		}
		return nil
	}
	isNew := a.GetOperation() == admission.Create
	if p.isOwn(a.GetUserInfo()) {
		return nil
	}
	w := Write{Namespace: a.GetNamespace(), Size: sizes.sizeOf(a.GetObject()), Ticket: ticketOf(ctx)}
	if w.Growth = w.Size; !isNew {
		w.IsUpdate, w.Growth = true, w.Size-sizes.sizeOf(a.GetOldObject())
		w.IsVital = isLease(a) || removesFinalizer(a.GetOldObject(), a.GetObject())
	}
	return refusalError(a, p.accounts.Admit(w))
}

// refusalError converts a refusal to an error of the API.
func refusalError(a admission.Attributes, r *Refusal) error {
	switch {
	case r == nil:
		return nil
	case r.IsTemporary:
		return apierrors.NewTooManyRequests(r.Message, retryAfter)
	}
	return admission.NewForbidden(a, errors.New(r.Message))
}

// isOwn reports whether a user is a part of this process. Writes of such users follow from objects that were
// admitted before, and without these writes nothing would be cleaned up.
func (p *plugin) isOwn(u user.Info) bool {
	return u.GetName() == user.APIServerUser || slices.Contains(p.own, u.GetName()) ||
		slices.Contains(u.GetGroups(), serviceaccount.MakeNamespaceGroupName("kube-system"))
}

// isStored reports whether a request stores an object. Reviews and token requests do not.
func isStored(a admission.Attributes) bool {
	group := a.GetResource().Group
	return group != "authentication.k8s.io" && group != "authorization.k8s.io" &&
		(a.GetOperation() != admission.Create || a.GetSubresource() == "")
}

func isLease(a admission.Attributes) bool {
	r := a.GetResource()
	return r.Group == "coordination.k8s.io" && r.Resource == "leases"
}

// isBeingDeleted reports whether an object only waits for its finalizers. Deleting it again does not
// replace content.
func isBeingDeleted(object runtime.Object) bool {
	m, err := meta.Accessor(object)
	return err == nil && m.GetDeletionTimestamp() != nil
}

// removesFinalizer reports whether an update reduces the number of finalizers.
func removesFinalizer(before, after runtime.Object) bool {
	old, err := meta.Accessor(before)
	if err != nil {
		return false
	}
	updated, err := meta.Accessor(after)
	return err == nil && len(updated.GetFinalizers()) < len(old.GetFinalizers())
}

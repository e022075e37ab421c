// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"cloudnative.tw/drover/internal/machine/accounts"
	"cloudnative.tw/drover/test/assert"
)

// group is the ID of group drover in tests.
const group = 77

// fakeDirectory has users by name. failing are the names for which the directory does not answer.
type fakeDirectory struct {
	users   map[string]accounts.User
	members map[string]bool
	failing map[string]bool
	noGroup bool
}

var errNoAnswer = errors.New("the directory does not answer")

func (d *fakeDirectory) FindUser(name string) (accounts.User, error) {
	if d.failing[name] {
		return accounts.User{}, errNoAnswer
	}
	if u, ok := d.users[name]; ok {
		return u, nil
	}
	return accounts.User{}, accounts.ErrUnknown
}

func (d *fakeDirectory) FindUserByID(id uint32) (accounts.User, error) {
	for _, u := range d.users {
		if u.ID == id {
			return u, nil
		}
	}
	return accounts.User{}, accounts.ErrUnknown
}

func (d *fakeDirectory) FindGroup(string) (accounts.Group, error) {
	if d.noGroup {
		return accounts.Group{}, accounts.ErrUnknown
	}
	return accounts.Group{Name: "drover", ID: group}, nil
}

func (d *fakeDirectory) GroupsOf(u accounts.User) ([]uint32, error) {
	if d.members[u.Name] {
		return []uint32{u.GroupID, group}, nil
	}
	return []uint32{u.GroupID}, nil
}

// newFakeDirectory returns a directory in which the users are members, with IDs from 1001 on.
func newFakeDirectory(names ...string) *fakeDirectory {
	d := &fakeDirectory{users: map[string]accounts.User{}, members: map[string]bool{}, failing: map[string]bool{}}
	for i, name := range names {
		d.users[name] = accounts.User{Name: name, ID: uint32(1001 + i), GroupID: uint32(1001 + i)}
		d.members[name] = true
	}
	return d
}

func newServer(d *fakeDirectory, objects ...client.Object) *Server {
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{List: listByRaw})
	return &Server{Directory: d, Client: builder.Build()}
}

// listByRaw lists by the field Raw of the options, as a real client does and the fake one does not.
func listByRaw(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	selector, err := labels.Parse((&client.ListOptions{}).ApplyOptions(options).AsListOptions().LabelSelector)
	return errors.Join(err, c.List(ctx, list, client.MatchingLabelsSelector{Selector: selector}))
}

func TestFindMember(t *testing.T) {
	t.Parallel()
	d := newFakeDirectory("ann", "a b", "1234", "primary", "left", "other")
	d.users["primary"] = accounts.User{Name: "primary", ID: 1004, GroupID: group}
	d.members["primary"], d.members["left"] = false, false
	d.users["lost"] = accounts.User{Name: "lost", ID: 2000}
	d.failing["lost"] = true
	d.users["other"] = accounts.User{Name: "ann", ID: 1006} // by its ID another source has the name of ann
	s := newServer(d)
	for name, c := range map[string]struct {
		uid           uint32
		want, says    string
		isNotARefusal bool
	}{
		"a member":              {uid: 1001, want: "unix:ann"},
		"by the primary group":  {uid: 1004, want: "unix:primary"},
		"root":                  {uid: 0, says: "root does not log in"},
		"an unknown user":       {uid: 9, says: "the host does not list a user with ID 9"},
		"a name with a space":   {uid: 1002, says: `the name of user 1002 is "a b"`},
		"a number":              {uid: 1003, says: `the name of user 1003 is "1234"`},
		"one who left":          {uid: 1005, says: "user left (1005) is not in group drover: have root run adduser left drover"},
		"a name of another one": {uid: 1006, says: "user ann (1006) is not in group drover"},
		"a failed lookup":       {uid: 2000, says: errNoAnswer.Error(), isNotARefusal: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := s.findMember(c.uid)
			if c.want != "" {
				assert.NoError(t, err)
				assert.Equal(t, "name", m.apiName(), c.want)
				return
			}
			assert.ErrorSays(t, "of the user", err, c.says)
			_, refused := errors.AsType[*refusal](err)
			assert.Equal(t, "refused", refused, !c.isNotARefusal)
		})
	}
}

func TestNamespaceOfMember(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"ann": "user-ann", "a-b": "user-a-b", "Ann": "user-uid-7", "a_b": "user-uid-7", "a.b": "user-uid-7",
		`AD\ann`: "user-uid-7", "ann@ad": "user-uid-7", "uid-8": "user-uid-7", "a-": "user-uid-7",
		strings.Repeat("a", 58): "user-" + strings.Repeat("a", 58), strings.Repeat("a", 59): "user-uid-7",
	} {
		assert.Equal(t, "namespace of "+name, member{name, 7}.namespace(), want)
	}
}

func TestGrantAccess(t *testing.T) {
	t.Parallel()
	m := member{"ann", 1001}
	for name, c := range map[string]struct {
		there *corev1.Namespace
		says  string
	}{
		"nothing yet":        {},
		"of this user":       {there: newNamespace("1001", "ann")},
		"root gave it":       {there: newNamespace("1001", "")},
		"of another ID":      {there: newNamespace("1000", "ann"), says: "namespace user-ann belongs to user ID 1000, and user ann has ID 1001: root can give it to ann (sudo drover kubectl label --overwrite namespace user-ann cloudnative.tw/unix-uid=1001)"},
		"of root":            {there: newNamespace("", ""), says: "namespace user-ann was not made for a user of the host"},
		"it is being erased": {there: deleted(newNamespace("1001", "ann")), says: "namespace user-ann is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(newFakeDirectory("ann"))
			if c.there != nil {
				s = newServer(newFakeDirectory("ann"), c.there)
			}
			for range 2 {
				if err := s.grantAccess(t.Context(), m); c.says != "" {
					assert.ErrorSays(t, "of the login", err, c.says)
				} else {
					assert.NoError(t, err)
					assert.Equal(t, "rights", subjectsOf(t, s), "user-ann/drover-login: unix:ann agents; user-ann/drover-self: unix:ann")
				}
			}
		})
	}
}

// TestAgentsOfEarlierUser checks that tokens of the user who had the namespace before end.
func TestAgentsOfEarlierUser(t *testing.T) {
	t.Parallel()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "user-ann", Name: agentsAccount, UID: "old", Labels: map[string]string{uidLabel: "1000"}}}
	s := newServer(newFakeDirectory("ann"), newNamespace("1001", "ann"), account)
	assert.NoError(t, s.grantAccess(t.Context(), member{"ann", 1001}))
	assert.NoError(t, s.Client.Get(t.Context(), client.ObjectKeyFromObject(account), account))
	assert.True(t, account.UID != "old" && account.Labels[uidLabel] == "1001", "the account is %v", account)
}

// TestCompareRights checks what is left of the rights of ann and bob, whom root gave more than their own namespaces.
func TestCompareRights(t *testing.T) {
	t.Parallel()
	const (
		ann = "user-ann/drover-login: unix:ann agents; user-ann/drover-self: unix:ann"
		bob = "user-bob/drover-login: unix:bob agents; user-bob/drover-self: unix:bob"
		all = "/wide: unix:ann unix:bob group; blue/both: unix:ann unix:bob agents; blue/one: unix:ann; " + ann + "; " + bob
	)
	for name, c := range map[string]struct {
		change func(d *fakeDirectory)
		want   string
		fails  bool
	}{
		"nothing has changed": {change: func(*fakeDirectory) {}, want: all},
		"ann left the group": {
			change: func(d *fakeDirectory) { d.members["ann"] = false },
			want:   "/wide: unix:bob group; blue/both: unix:bob; " + bob,
		},
		"ann was deleted": {
			change: func(d *fakeDirectory) { delete(d.users, "ann") },
			want:   "/wide: unix:bob group; blue/both: unix:bob; " + bob,
		},
		"another ann came": {
			change: func(d *fakeDirectory) { d.users["ann"] = accounts.User{Name: "ann", ID: 1500} },
			want:   "/wide: unix:bob group; blue/both: unix:bob; " + bob,
		},
		"no answer about ann": {
			change: func(d *fakeDirectory) { d.members["ann"], d.failing["ann"] = false, true },
			want:   all, fails: true,
		},
		"no answer about ann, and bob left": {
			change: func(d *fakeDirectory) { d.failing["ann"], d.members["bob"] = true, false },
			want:   "/wide: unix:ann group; blue/both: unix:ann agents; blue/one: unix:ann; " + ann, fails: true,
		},
		"the group was deleted": {change: func(d *fakeDirectory) { d.noGroup = true }, want: "/wide: group"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newFakeDirectory("ann", "bob")
			s := newServer(d, rightsByRoot()...)
			assert.NoError(t, errors.Join(s.grantAccess(t.Context(), member{"ann", 1001}), s.grantAccess(t.Context(), member{"bob", 1002})))
			c.change(d)
			for range 2 {
				err := s.compareRights(t.Context())
				assert.Equal(t, "failed", err != nil, c.fails)
				assert.Equal(t, "rights", subjectsOf(t, s), c.want)
			}
			for ns, user := range map[string]string{"user-ann": "unix:ann", "user-bob": "unix:bob"} {
				err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: agentsAccount}, &corev1.ServiceAccount{})
				assert.Equal(t, "agents of "+user+" are gone", apierrors.IsNotFound(err), !strings.Contains(c.want, user))
				assert.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Name: ns}, &corev1.Namespace{}))
			}
		})
	}
}

// TestRightsComeBack checks that a user who comes back has access without a login, and no rights that root gave before.
func TestRightsComeBack(t *testing.T) {
	t.Parallel()
	d := newFakeDirectory("ann")
	s := newServer(d, rightsByRoot()...)
	assert.NoError(t, s.grantAccess(t.Context(), member{"ann", 1001}))
	for _, isMember := range []bool{false, true} {
		d.members["ann"] = isMember
		assert.NoError(t, s.compareRights(t.Context()))
	}
	assert.Equal(t, "rights", subjectsOf(t, s), "/wide: group; user-ann/drover-login: unix:ann agents; user-ann/drover-self: unix:ann")
}

// rightsByRoot are bindings that root made for ann, bob and ann's programs.
func rightsByRoot() []client.Object {
	user := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
	}
	agents := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "user-ann", Name: "agents"}
	others := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "group"}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	return []client.Object{
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "wide"}, RoleRef: role, Subjects: []rbacv1.Subject{user("unix:ann"), user("unix:bob"), others}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "both"}, RoleRef: role, Subjects: []rbacv1.Subject{user("unix:ann"), user("unix:bob"), agents}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "one"}, RoleRef: role, Subjects: []rbacv1.Subject{user("unix:ann")}},
	}
}

// subjectsOf returns all bindings and their subjects in a text.
func subjectsOf(t *testing.T, s *Server) string {
	t.Helper()
	var in rbacv1.RoleBindingList
	var everywhere rbacv1.ClusterRoleBindingList
	assert.NoError(t, errors.Join(s.Client.List(context.Background(), &in), s.Client.List(context.Background(), &everywhere)))
	var lines []string
	add := func(object client.Object, subjects []rbacv1.Subject) {
		line := fmt.Sprintf("%s/%s:", object.GetNamespace(), object.GetName())
		for _, subject := range subjects {
			line += " " + subject.Name
		}
		lines = append(lines, line)
	}
	for i := range in.Items {
		add(&in.Items[i], in.Items[i].Subjects)
	}
	for i := range everywhere.Items {
		add(&everywhere.Items[i], everywhere.Items[i].Subjects)
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func newNamespace(uid, user string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "user-ann", Labels: map[string]string{}, Annotations: map[string]string{}}}
	if uid != "" {
		ns.Labels[uidLabel] = uid
	}
	if user != "" {
		ns.Annotations[userAnnotation] = user
	}
	return ns
}

func deleted(ns *corev1.Namespace) *corev1.Namespace {
	now := metav1.Now()
	ns.DeletionTimestamp, ns.Finalizers = &now, []string{"example.com/kept"}
	return ns
}
